//! A copy of the descriptor of each mount. The kernel ends a mount with the last copy: with this one, a mount outlives the
//! container of its Mountpoint Pod, and the pod itself, and programs wait for the next one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use mounter::handover::is_disconnected;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, statat};

/// By UID of the Mountpoint Pod.
#[derive(Debug, Default)]
pub struct KeptDescriptors(Mutex<HashMap<String, SurvivingMount>>);

#[derive(Clone, Debug)]
pub struct SurvivingMount {
    pub descriptor: Arc<OwnedFd>,
    /// The one that serves it, or has served it.
    pub mounter: MounterId,
    /// Name of its Mountpoint Pod.
    pub pod: String,
    /// When that mounter was found to serve it.
    pub served_since: Timestamp,
    /// In which the pod keeps what a successor needs. It outlives the pod, too.
    pub successor_folder: Arc<OwnedFd>,
}

/// Tells one mounter of a pod from the next: the inode of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MounterId(pub u64);

impl SurvivingMount {
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.descriptor, &other.descriptor)
    }

    /// Whether another mount process could continue: the mount has not ended, by an unmount or because its connection was
    /// aborted, and there is a journal.
    pub fn can_continue(&self) -> bool {
        // The pod can put a link there, to a path of the mount itself, which nothing would answer.
        let journal = statat(&*self.successor_folder, mounter::JOURNAL, AtFlags::SYMLINK_NOFOLLOW);
        !is_disconnected(&*self.descriptor)
            && journal.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile)
    }
}

impl KeptDescriptors {
    /// Instead of what was kept for this pod before.
    pub fn keep(&self, pod_uid: &str, kept: SurvivingMount) {
        self.0.lock().insert(pod_uid.to_owned(), kept);
    }

    pub fn get(&self, pod_uid: &str) -> Option<SurvivingMount> {
        self.0.lock().get(pod_uid).cloned()
    }

    /// UID of the Mountpoint Pod of this name, and what is kept of its mount, if that can be continued.
    pub fn of_pod(&self, name: &str) -> Option<(String, SurvivingMount)> {
        let kept = self.0.lock();
        let found = kept.iter().find(|(_, kept)| kept.pod == name && kept.can_continue());
        found.map(|(uid, kept)| (uid.clone(), kept.clone()))
    }

    /// The mount ends, unless a mount process serves it.
    pub fn drop(&self, pod_uid: &str) {
        self.0.lock().remove(pod_uid);
    }

    /// Unless another one has taken its place.
    pub fn drop_this(&self, pod_uid: &str, kept: &SurvivingMount) {
        let mut all = self.0.lock();
        if all.get(pod_uid).is_some_and(|now| now.is_same(kept)) {
            all.remove(pod_uid);
        }
    }

    pub fn all(&self) -> Vec<(String, SurvivingMount)> {
        self.0.lock().iter().map(|(uid, kept)| (uid.clone(), kept.clone())).collect()
    }

    pub fn retain(&self, is_kept: impl Fn(&str, &SurvivingMount) -> bool) {
        self.0.lock().retain(|pod_uid, kept| is_kept(pod_uid, kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_descriptor_is_dropped_only_as_long_as_it_is_the_kept_one() {
        let all = KeptDescriptors::default();
        let file = || Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let keep = |mounter: u64| {
            let (mounter, pod) = (MounterId(mounter), "mp".to_owned());
            all.keep(
                "pod",
                SurvivingMount {
                    descriptor: file(),
                    mounter,
                    pod,
                    served_since: Timestamp::UNIX_EPOCH,
                    successor_folder: file(),
                },
            );
            all.get("pod").unwrap()
        };
        let (first, second) = (keep(1), keep(2));
        all.drop_this("pod", &first);
        assert_eq!(all.get("pod").unwrap().mounter, MounterId(2));
        all.drop_this("pod", &second);
        assert!(all.get("pod").is_none());
    }
}
