//! Which Secrets are read. A cluster has thousands of volumes, each with one of its own.

use std::collections::BTreeMap;

use contract::names::DRIVER;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, Client, ResourceExt as _};

use crate::answer::answer;
use crate::class;
use crate::secret::{self, Renamed, SecretName, SecretState, Values};
use crate::snapshot::Snapshot;
use crate::volume::VolumeFacts;
use crate::workload::claims;

/// The API server answers in milliseconds, and gives one client a share of what it can do at once.
const AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug)]
pub enum Secrets<'a> {
    None,
    /// Of the volumes of this pod, and the driver's.
    Of(&'a Pod),
    All,
}

/// The Secrets that these workloads need, and how their keys are renamed.
pub(super) fn needed(snapshot: &Snapshot, which: Secrets<'_>) -> BTreeMap<SecretName, Renamed> {
    let claims = |pod: &Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        claims(pod).into_iter().map(move |claim| Some((namespace.clone(), claim))).collect::<Vec<_>>()
    };
    let (of_pod, is_all) = match which {
        Secrets::None => return BTreeMap::new(),
        Secrets::Of(pod) => (claims(pod), false),
        Secrets::All => (Vec::new(), true),
    };
    let is_needed = |volume: &&VolumeFacts| is_all || of_pod.contains(&volume.claim);
    let own = snapshot.volumes.iter().filter(is_needed).filter_map(|volume| volume.secret.clone());
    let classes = snapshot.classes.iter().filter(|class| is_all && class.provisioner == DRIVER);
    let own = own.chain(classes.flat_map(class::secrets)).map(|name| (name, Renamed::new()));
    let installation = snapshot.installation().into_iter();
    own.chain(installation.flat_map(|installation| installation.keys.into_values())).collect()
}

/// Whether each of them is usable.
pub(super) async fn states(
    client: &Client,
    needed: BTreeMap<SecretName, Renamed>,
) -> BTreeMap<SecretName, SecretState> {
    let read = needed.into_iter().map(async |(name, renamed)| {
        let state = match get(client, &name).await {
            Ok(Some(secret)) => SecretState::of(&name, &secret, &renamed),
            Ok(None) => SecretState::Missing,
            Err(error) => SecretState::Unreadable(error),
        };
        (name, state)
    });
    stream::iter(read).buffer_unordered(AT_ONCE).collect().await
}

/// The values of all Secrets with keys that the snapshot knows of, for the scrubber, and the Secrets that cannot be read.
pub async fn values(client: &Client, snapshot: &Snapshot) -> (Values, Vec<SecretName>) {
    let read = snapshot.secrets.keys().map(async |name| match get(client, name).await {
        Ok(secret) => Ok(secret.as_ref().map(secret::values).unwrap_or_default()),
        Err(_) => Err(name.clone()),
    });
    let read: Vec<_> = stream::iter(read).buffered(AT_ONCE).collect().await;
    let (mut values, mut unread) = (Vec::new(), Vec::new());
    for found in read {
        match found {
            Ok(found) => values.extend(found),
            Err(name) => unread.push(name),
        }
    }
    (Values(values), unread)
}

async fn get(client: &Client, name: &SecretName) -> Result<Option<Secret>, String> {
    answer(Api::<Secret>::namespaced(client.clone(), &name.namespace).get_opt(&name.name)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::volume;
    use crate::why::scene::scene;
    use serde_json::json;

    #[test]
    fn only_the_secrets_that_a_question_is_about_are_read() {
        let of = |name: &str| {
            volume(|volume| {
                volume["metadata"]["name"] = json!(name);
                volume["spec"]["claimRef"]["name"] = json!(name);
                volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "ns", "name": name});
            })
        };
        let class = json!({"metadata": {"name": "c"}, "provisioner": DRIVER, "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "admin",
            "csi.storage.k8s.io/provisioner-secret-namespace": "ns",
        }});
        let mut snapshot = scene();
        snapshot.volumes = vec![of("data"), of("another")];
        snapshot.classes = vec![serde_json::from_value(class).unwrap()];
        let names = |which: Secrets<'_>| -> Vec<String> {
            needed(&snapshot, which).keys().map(ToString::to_string).collect()
        };
        assert_eq!(names(Secrets::None), [""; 0]);
        assert_eq!(names(Secrets::Of(&snapshot.pods[0])), ["kube-system/s3-secret", "ns/data"]);
        let all = ["kube-system/s3-secret", "ns/admin", "ns/another", "ns/data"];
        assert_eq!(names(Secrets::All), all);
    }
}
