//! The requests of the volumes published on this node, for healing. Lost with the process, until the kubelet's periodic
//! republish.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::PublishRequest;

/// By target path.
#[derive(Default)]
pub struct PublishedRequests(Mutex<HashMap<PathBuf, Arc<PublishRequest>>>);

impl PublishedRequests {
    pub fn insert(&self, request: Arc<PublishRequest>) {
        self.0.lock().insert(request.target.clone(), request);
    }

    /// Takes the request of a target that is published or, by an earlier process, mounted. Even if this publish fails: healing
    /// must use the newest Secret, and a mount that does not answer is replaced only if healing knows of it.
    pub fn refresh(&self, request: &Arc<PublishRequest>, is_mounted: bool) {
        let mut all = self.0.lock();
        if is_mounted || all.contains_key(&request.target) {
            all.insert(request.target.clone(), Arc::clone(request));
        }
    }

    /// The request with the newest Secret and token. The kubelet republishes the workloads that share a mount one after another:
    /// the keys in the request of one may be older than those that another one's publish has written.
    pub fn with_newest_credentials(&self, request: &PublishRequest) -> PublishRequest {
        let mut newest = request.clone();
        let all = self.0.lock();
        let is_newer = |it: &&Arc<PublishRequest>| {
            it.arrived > request.arrived
                && (&it.volume_name, &it.volume_id) == (&request.volume_name, &request.volume_id)
        };
        let mut newer: Vec<_> = all.values().filter(is_newer).collect();
        newer.sort_by_key(|it| it.arrived);
        for PublishRequest { authentication, secret_keys, tokens, pod_namespace, service_account, .. } in
            newer.into_iter().map(|it| &**it)
        {
            (newest.authentication, newest.secret_keys) = (*authentication, secret_keys.clone());
            if (pod_namespace, service_account) == (&request.pod_namespace, &request.service_account) {
                newest.tokens = tokens.clone();
            }
        }
        newest
    }

    pub fn remove(&self, target: &Path) {
        self.0.lock().remove(target);
    }

    pub fn get(&self, target: &Path) -> Option<Arc<PublishRequest>> {
        self.0.lock().get(target).cloned()
    }

    pub fn targets(&self) -> Vec<PathBuf> {
        self.0.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::authentication::AuthenticationSource;
    use service::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
    use service::csi::{NodePublishVolumeRequest, VolumeCapability};
    use std::time::Instant;

    use crate::identity::TOKENS;

    /// Of this workload, with this service account, for the volume `pv`.
    fn request(workload: &str, account: &str, key: &str) -> Arc<PublishRequest> {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let tokens = format!(r#"{{"audience-{key}": {{"token": "t"}}}}"#);
        let request = NodePublishVolumeRequest {
            volume_id: "handle".to_owned(),
            target_path: format!("/kubelet/pods/{workload}/volumes/kubernetes.io~csi/pv/mount"),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
                access_type: Some(AccessType::Mount(MountVolume::default())),
            }),
            volume_context: text(&[
                ("bucketName", "bucket"),
                ("csi.storage.k8s.io/serviceAccount.name", account),
                (TOKENS, &tokens),
            ]),
            secrets: text(&[("access_key_id", key), ("secret_access_key", "s")]),
            ..NodePublishVolumeRequest::default()
        };
        Arc::new(PublishRequest::parse(request, Path::new("/kubelet")).unwrap())
    }

    /// Otherwise healing would not replace it: a publish waits for healing if the mount does not answer.
    #[test]
    fn a_mount_of_an_earlier_process_is_known_before_its_publish_succeeds() {
        let published = PublishedRequests::default();
        let (old, new) = (request("a", "x", "OLD"), request("a", "x", "NEW"));
        published.refresh(&old, false);
        assert!(published.get(&old.target).is_none(), "there is nothing to heal");
        published.refresh(&old, true);
        assert!(Arc::ptr_eq(&published.get(&old.target).unwrap(), &old));
        published.refresh(&new, false);
        assert!(Arc::ptr_eq(&published.get(&old.target).unwrap(), &new));
    }

    #[test]
    fn the_keys_of_a_volume_are_the_newest_whichever_workload_they_came_for() {
        let published = PublishedRequests::default();
        let (first, second) = (request("a", "x", "OLD"), request("b", "x", "NEW"));
        let (third, now) = (request("c", "y", "NEWER"), Instant::now());
        let other = PublishRequest { volume_id: "other".to_owned(), ..(*request("d", "x", "OTHER")).clone() };
        for request in [Arc::new(other), third, Arc::clone(&second), Arc::clone(&first)] {
            published.insert(request);
        }
        let keys = |request: &PublishRequest| {
            let newest = published.with_newest_credentials(request);
            assert_eq!(
                (&newest.target, newest.authentication),
                (&request.target, Some(AuthenticationSource::Secret))
            );
            (newest.secret_keys.unwrap().access_key_id, format!("{:?}", newest.tokens))
        };
        let (key, tokens) = keys(&first);
        assert_eq!(key, "NEWER");
        assert!(tokens.contains("audience-NEW\""), "of the same service account: {tokens}");
        let latest = PublishRequest { arrived: now, ..(*first).clone() };
        assert_eq!(keys(&latest).0, "OLD", "that is what the Secret has now");
    }
}
