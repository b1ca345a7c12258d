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
    use service::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
    use service::csi::{NodePublishVolumeRequest, VolumeCapability};

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
}
