//! Commands of the documentation, run as a user would paste them. A block that a page shows as `sh` is run by a test; commands
//! that no test can run, such as those with a registry of the reader's, are indented instead.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use xtask::cluster::Cluster;
use xtask::command::{capture, search_path};
use xtask::driver;
use xtask::s3::ALICE;

use crate::pages::{self, Block};
use crate::reference;

/// (page, heading) of the blocks that need a situation of their own, which the test of that situation runs.
pub const BEFORE_THE_REFERENCE_GOES: (&str, &str) = ("docs/migrating.md", "Before you begin");
pub const CREATE_A_VOLUME_ANEW: (&str, &str) = ("docs/migrating.md", "Create a volume anew");
pub const IN_THE_REFERENCES_PLACE: (&str, &str) = ("docs/migrating.md", "In place");
pub const BACK_TO_THE_REFERENCE: (&str, &str) = ("docs/migrating.md", "And back");
pub const AFTER_UNINSTALLING: (&str, &str) = ("docs/installation.md", "Uninstalling");
const IN_OTHER_TESTS: &[(&str, &str)] = &[
    BEFORE_THE_REFERENCE_GOES,
    CREATE_A_VOLUME_ANEW,
    IN_THE_REFERENCES_PLACE,
    BACK_TO_THE_REFERENCE,
    AFTER_UNINSTALLING,
];

/// What readers replace, and by what tests do. Those without a value get it from the cluster.
const PLACEHOLDERS: &[(&str, Option<&str>)] = &[
    ("ATTACHMENT", None),
    ("KEY", Some(ALICE.access_key)),
    ("MOUNTPOINT_POD", None),
    ("NAMESPACE", Some("default")),
    ("NODE", None),
    ("POD", Some("reader")),
    ("RELEASE", Some(reference::RELEASE)),
    ("RELEASE_NAMESPACE", Some(driver::NAMESPACE)),
    ("SECRET", Some(ALICE.secret_key)),
    ("VOLUME", None),
];

/// The blocks that can run one after the other on a cluster with the examples.
pub fn usual() -> Vec<Block> {
    let mut blocks: Vec<Block> = pages::all().iter().flat_map(|page| page.blocks("sh")).collect();
    blocks.retain(|block| {
        !IN_OTHER_TESTS.iter().any(|(page, heading)| block.page == *page && block.heading == *heading)
    });
    blocks
}

/// Runs the block below this heading of the page.
pub fn below(cluster: &Cluster, heading: (&str, &str)) -> Result<String> {
    below_with(cluster, heading, &[])
}

/// The same with a value for placeholders of the cluster.
pub fn below_with(
    cluster: &Cluster,
    (page, heading): (&str, &str),
    found: &[(&str, String)],
) -> Result<String> {
    paste(cluster, &pages::block(page, heading, "sh"), found)
}

/// Runs a block in a folder that has what a checkout has, with `found` for the placeholders of the cluster. Returns what it
/// prints.
pub fn paste(cluster: &Cluster, block: &Block, found: &[(&str, String)]) -> Result<String> {
    let value = |word: &str| {
        let usual = PLACEHOLDERS.iter().find(|(name, _)| *name == word).and_then(|(_, value)| *value);
        let of_cluster = found.iter().find(|(name, _)| *name == word).map(|(_, value)| value.as_str());
        of_cluster.or(usual)
    };
    let values: Vec<String> = driver::usual_values().iter().map(|value| format!("--set '{value}'")).collect();
    let text = replaced(&block.text, value).replace("--values values.yaml", &values.join(" "));
    let folder = tempfile::tempdir()?;
    for there in ["charts", "examples"] {
        symlink(pages::root().canonicalize()?.join(there), folder.path().join(there))?;
    }
    capture(
        Command::new("sh")
            .args(["-e", "-c", &text])
            .current_dir(folder.path())
            .env("PATH", programs(cluster)?)
            // What kubectl and Helm keep belongs to the cluster.
            .env("HOME", cluster.dir())
            .env("KUBECONFIG", cluster.kubeconfig()),
    )
}

/// `PATH` with kubectl, its plugin and Helm.
pub fn programs(cluster: &Cluster) -> Result<OsString> {
    let programs = cluster.programs()?;
    let of_cluster = [programs.node("kubectl"), programs.tool("helm")];
    let ours = env::var_os("S3_CSI_PROGRAMS").map(PathBuf::from);
    let folders = of_cluster.iter().filter_map(|program| program.parent()).map(PathBuf::from).chain(ours);
    Ok(env::join_paths(folders.chain(env::split_paths(&search_path())))?)
}

/// With a value for each word that has one.
fn replaced<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let is_part = |one: char| one.is_ascii_alphanumeric() || one == '_';
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|one: char| is_part(one) != is_part(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        replaced += value(word).unwrap_or(word);
        rest = after;
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_replaced() {
        let value = |word: &str| (word == "POD").then_some("reader");
        assert_eq!(
            replaced("logs POD MOUNTPOINT_POD -n=POD\n", value),
            "logs reader MOUNTPOINT_POD -n=reader\n"
        );
    }

    /// A block that no test can run as it is has words that this table does not know.
    #[test]
    fn every_runnable_block_has_a_runner_and_known_placeholders() {
        for (page, heading) in IN_OTHER_TESTS {
            pages::block(page, heading, "sh");
        }
        assert!(usual().len() > 10, "{:?}", usual());
        for block in pages::all().iter().flat_map(|page| page.blocks("sh")) {
            let words = block.text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
            let capitals = |word: &&str| {
                word.len() > 1 && !word.contains(|one: char| !one.is_ascii_uppercase() && one != '_')
            };
            for word in words.filter(capitals) {
                assert!(
                    PLACEHOLDERS.iter().any(|(name, _)| *name == word),
                    "{}: {word} in\n{}",
                    block.page,
                    block.text
                );
            }
            assert!(!block.text.contains('…'), "{}: nothing can run\n{}", block.page, block.text);
        }
    }
}
