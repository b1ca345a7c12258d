//! What a support engineer asks for, in one archive, without secrets.

mod archive;
mod logs;
mod objects;
mod redact;

use std::collections::BTreeMap;
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde_json::json;

pub use archive::Archive;
pub use redact::Scrubber;

use crate::answer::answer;
use crate::doctor::{Examined, Report};
use crate::error::PluginError;
use crate::mounts::Mount;
use crate::snapshot::Snapshot;

/// What is packed beside what is read anew.
pub struct Found<'a> {
    pub snapshot: &'a Snapshot,
    pub examined: &'a Examined,
    pub report: &'a Report,
    pub mounts: &'a [Mount],
}

/// Reads objects, and logs of at most so many pods, and scrubs all of it. Returns of how many pods the logs were left out.
pub async fn collect(
    client: &Client,
    scrubber: &Scrubber,
    found: &Found<'_>,
    most_pods: usize,
    archive: &mut Archive,
) -> Result<usize, PluginError> {
    let mut packed = Packed { scrubber, archive };
    let Found { snapshot, examined, report, mounts } = found;
    packed.json("doctor.json", report)?;
    packed.json("mounts.json", mounts)?;
    let version = answer(client.apiserver_version()).await;
    let version = version.map_or_else(|error| error, |info| info.git_version);
    packed.json(
        "versions.json",
        &json!({"plugin": env!("CARGO_PKG_VERSION"), "kubernetes": version, "collected": snapshot.now}),
    )?;
    let unreadable: BTreeMap<&str, &String> =
        snapshot.unreadable.iter().map(|(what, error)| (what.into_str(), error)).collect();
    packed.json("unreadable.json", &unreadable)?;
    for inside in examined.inside.iter().flatten() {
        let report =
            inside.report.as_ref().map_or_else(|error| json!({"error": error}), |report| json!(report));
        packed.json(&format!("inside/{}.json", inside.object.replace(' ', "-")), &report)?;
    }
    for (kind, objects) in objects::objects(client, snapshot).await {
        packed.json(&format!("objects/{kind}.json"), &objects)?;
    }
    let pods = logs::pods(client, snapshot).await;
    let (pods, left_out) = pods.split_at(most_pods.min(pods.len()));
    let name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    packed.json("without-logs.json", &left_out.iter().map(name).collect::<Vec<_>>())?;
    let mut logs = pin!(logs::read(client, pods));
    while let Some((path, log)) = logs.next().await {
        packed.archive.add(&path, scrubber.text(&log).as_bytes())?;
    }
    Ok(left_out.len())
}

struct Packed<'a> {
    scrubber: &'a Scrubber,
    archive: &'a mut Archive,
}

impl Packed<'_> {
    fn json(&mut self, path: &str, value: &(impl Serialize + ?Sized)) -> Result<(), PluginError> {
        let value = self.scrubber.object(serde_json::to_value(value).unwrap_or_default());
        self.archive.add(path, &serde_json::to_vec_pretty(&value).unwrap_or_default())
    }
}
