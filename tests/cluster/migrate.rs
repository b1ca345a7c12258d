//! The reference driver is replaced by ours under running workloads, and ours by the reference.

use std::path::Path;
use std::process::Command;

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt as _};
use s3_csi_tests::{Seen, eventually, reference};
use xtask::command::{run, search_path};
use xtask::driver;

use crate::moves::versions;
use crate::restarts::{BEAT, delete_without_errors, serves_another};
use crate::story::{LIMIT, Story};

/// Runs the commands below this heading of the page, as a user would paste them, with the values of the tests.
fn paste(story: &Story, heading: &str) {
    let page = include_str!("../../docs/migrating.md");
    let (_, page) = page.split_once(heading).unwrap_or_else(|| panic!("the page has no `{heading}`"));
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let values: Vec<String> = driver::usual_values().iter().map(|value| format!("--set '{value}'")).collect();
    let block = block.replace("RELEASE", reference::RELEASE);
    let block = block.replace("--values values.yaml", &values.join(" "));
    let programs = story.here.cluster.programs().unwrap();
    let tools = [programs.node("kubectl"), programs.tool("helm")];
    let tools = tools.iter().filter_map(|tool| tool.parent()).map(Path::to_owned).collect::<Vec<_>>();
    let folders = std::env::split_paths(&search_path()).collect::<Vec<_>>();
    let path = std::env::join_paths(tools.into_iter().chain(folders)).unwrap();
    run(Command::new("sh")
        .args(["-e", "-c", &block])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PATH", path)
        .env("HOME", story.here.cluster.dir())
        .env("KUBECONFIG", story.here.cluster.kubeconfig()))
    .unwrap();
}

/// The number of fields by which the API server selects attachments: the reference's definition has fewer.
async fn selectable_fields(story: &Story) -> usize {
    let definitions = Api::<CustomResourceDefinition>::all(story.here.client.clone());
    let definition = definitions.get(MountpointS3PodAttachment::crd_name()).await.unwrap();
    definition.spec.versions[0].selectable_fields.as_ref().map_or(0, Vec::len)
}

#[tokio::test]
async fn the_reference_driver_is_replaced_under_running_workloads_and_back() {
    let story = Story::alone("migrated").await;
    let of_ours = selectable_fields(&story).await;
    let installed = reference::installed(&story.here.cluster);
    story.here.run("workload", story.workload(BEAT)).await;
    story.says("workload", "beat").await;
    reference::rewrite(&story).await;
    assert_eq!(versions(&story).await, [reference::VERSION]);
    assert!(selectable_fields(&story).await < of_ours);

    paste(&story, "### In place");
    serves_another(&story, "newer").await;
    let both = versions(&story).await;
    assert_eq!(both.len(), 2, "new workloads get a Mountpoint Pod of this driver: {both:?}");
    assert!(both.contains(&reference::VERSION.to_owned()), "and the others keep theirs: {both:?}");
    eventually("the definition is that of this driver", LIMIT, || async {
        let fields = selectable_fields(&story).await;
        Seen::some((fields == of_ours).then_some(()), fields)
    })
    .await;

    paste(&story, "### And back");
    serves_another(&story, "older").await;
    delete_without_errors(&story, &["workload", "newer", "older"]).await;
    eventually("nothing is left", LIMIT, || async {
        let left = story.left().await;
        Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
    })
    .await;
    installed.undo();
    story.leaves_nothing().await;
}
