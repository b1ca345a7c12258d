//! What pages show as YAML is what the API server takes.

use std::fs;
use std::path::{Path, PathBuf};

use s3_csi_tests::Stage;
use serde_json::Value;
use xtask::command::run;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|one| one == "md")).collect();
    pages.push(root.join("README.md"));
    pages
}

fn blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.map(|rest| rest.split_once("```").expect("a block ends").0).collect()
}

/// A block without `apiVersion` is a part of an object, and is only read.
#[tokio::test]
async fn every_yaml_block_of_every_page_is_taken() {
    let stage = Stage::set("pages").await;
    let (mut applied, mut parts) = (0, 0);
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for block in blocks(&page) {
            let documents: Vec<Value> = serde_saphyr::from_multiple(block)
                .unwrap_or_else(|error| panic!("{}: {error}\n{block}", path.display()));
            if !documents.iter().any(|document| document["apiVersion"].is_string()) {
                parts += 1;
                continue;
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            // Without controllers, only the test's own namespace has the account that pods need.
            let here = format!("namespace: {}", stage.here.namespace);
            fs::write(file.path(), block.replace("namespace: default", &here)).unwrap();
            let mut kubectl = stage.here.cluster.kubectl().unwrap();
            kubectl.args(["apply", "--dry-run=server", "--validate=strict", "--filename"]);
            run(kubectl.arg(file.path())).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            applied += 1;
        }
    }
    assert!(applied > 0 && parts > 0, "{applied} objects, {parts} parts");
}
