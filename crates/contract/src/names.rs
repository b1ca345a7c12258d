//! Every name that more than one program uses: in the API, on the node and inside a Mountpoint Pod.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha224};

pub const DRIVER: &str = "s3.csi.scality.com";
/// Where Mountpoint Pods live unless the installation says otherwise.
pub const MOUNTPOINT_NAMESPACE: &str = "mount-s3";

/// Source of the driver's mounts in a mount table; the same as the reference's, whose mounts are recognised by it, too.
pub const MOUNT_SOURCE: &str = "mountpoint-s3";
/// Set by administrators on new nodes, and removed by the node service.
pub const NOT_READY_TAINT: &str = "s3.csi.scality.com/agent-not-ready";

/// Reasons of the node service's Events about a mount.
pub mod mount_event {
    pub const LOST: &str = "BucketMountLost";
    pub const UNRESPONSIVE: &str = "BucketMountUnresponsive";
    pub const RESTORED: &str = "BucketMountRestored";
    pub const RESPONSIVE: &str = "BucketMountResponsive";
    pub const KEYS_EXPIRED: &str = "BucketCredentialsExpired";
    pub const KEYS_RENEWED: &str = "BucketCredentialsRenewed";
    /// I/O went on, so it is no failure, although it is a Warning and no recovery follows.
    pub const PROCESS_DIED: &str = "MountProcessDied";
    /// Of each list, the newest Event counts. A mount that was restored may still have expired keys.
    pub const FAILURES_AND_RECOVERIES: [&[&str]; 2] =
        [&[LOST, UNRESPONSIVE, RESTORED, RESPONSIVE], &[KEYS_EXPIRED, KEYS_RENEWED]];
}

/// Labels of Mountpoint Pods.
pub mod label {
    /// The version of the driver that created it: a newer driver creates new pods for new workloads.
    pub const DRIVER_VERSION: &str = "s3.csi.scality.com/mounted-by-csi-driver-version";
    pub const MOUNTPOINT_VERSION: &str = "s3.csi.scality.com/mountpoint-version";
    /// UID of the workload it was created for; others may have joined since.
    pub const WORKLOAD_UID: &str = "s3.csi.scality.com/pod-uid";
    /// The same as the annotation, for selectors of people and tools, where the name is short enough.
    pub const VOLUME_NAME: &str = super::annotation::VOLUME_NAME;
    /// In bytes.
    pub const LONGEST_VALUE: usize = 63;

    /// On a workload for which room is reserved: its own UID, which its headroom pods follow to its node.
    pub const HEADROOM_FOR_WORKLOAD: &str = "s3.csi.scality.com/headroom-for-workload";
    /// On a headroom pod: the UID of the workload that it reserves room for.
    pub const HEADROOM_FOR_POD: &str = "s3.csi.scality.com/headroom-for-pod";
    /// On a headroom pod: the volume, where its name is short enough.
    pub const HEADROOM_FOR_VOLUME: &str = super::annotation::HEADROOM_FOR_VOLUME;
}

/// The scheduling gate with which a workload asks for room for its Mountpoint Pods.
pub const HEADROOM_GATE: &str = "s3.csi.scality.com/reserve-headroom-for-mppod";

/// Annotations of Mountpoint Pods.
pub mod annotation {
    /// `"true"`: workloads no longer need it; the node unmounts and the pod ends.
    pub const NEEDS_UNMOUNT: &str = "s3.csi.scality.com/needs-unmount";
    /// `"true"`, set by an administrator: keeps serving its current workloads and takes no new ones.
    pub const NO_NEW_WORKLOAD: &str = "s3.csi.scality.com/no-new-workload";
    /// A volume's name may be longer than a label's value.
    pub const VOLUME_NAME: &str = "s3.csi.scality.com/volume-name";
    pub const VOLUME_ID: &str = "s3.csi.scality.com/volume-id";
    /// Whose credentials the volume asks for: the node does not read volumes and cannot distinguish a Secret without data from
    /// no Secret.
    pub const AUTHENTICATION_SOURCE: &str = "s3.csi.scality.com/authentication-source";
    /// `NAMESPACE/NAME` of the claim that its volume is bound to, for the labels of its metrics.
    pub const CLAIM: &str = "s3.csi.scality.com/claim";
    /// The attachment it was created for.
    pub const ATTACHMENT: &str = "s3.csi.scality.com/attachment";
    /// `"true"`: its mount can be moved to another pod while programs use it.
    pub const MOVABLE: &str = "s3.csi.scality.com/movable";
    /// The node that it is kept ready on, until an attachment claims it.
    pub const WARM_ON: &str = "s3.csi.scality.com/warm-on";
    /// On a pod that was warm until it was claimed: what the node may mount before the kubelet asks for it, as JSON. `null` if that
    /// is nothing.
    pub const EARLY_MOUNT: &str = "s3.csi.scality.com/early-mount";
    /// What it was made of, as long as it is warm: after an upgrade, pods made of anything else are replaced.
    pub const WARM_SHAPE: &str = "s3.csi.scality.com/warm-shape";
    /// On a headroom pod: the volume that it reserves room for.
    pub const HEADROOM_FOR_VOLUME: &str = "s3.csi.scality.com/headroom-for-volume";
    /// On a headroom pod: `NAMESPACE/NAME` of its workload, by which the workload can be read.
    pub const HEADROOM_FOR: &str = "s3.csi.scality.com/headroom-for";
}

/// Whether a namespace may have this name.
pub fn is_namespace_name(text: &str) -> bool {
    text.len() <= 63 && is_plain(text)
}

/// Whether most other objects may have this name.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_plain)
}

fn is_plain(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || c == '-')
}

/// `mp-<sha224>` of the workload that a Mountpoint Pod is created for.
pub fn mountpoint_pod(workload_uid: &str, volume_name: &str) -> String {
    let hash = Sha224::new().chain_update(workload_uid).chain_update(volume_name).finalize();
    format!("mp-{}", base16ct::lower::encode_string(&hash))
}

/// `hr-<sha224>` of the workload and the volume that a headroom pod reserves room for.
pub fn headroom_pod(workload_uid: &str, volume_name: &str) -> String {
    mountpoint_pod(workload_uid, volume_name).replacen("mp-", "hr-", 1)
}

/// The name of a Mountpoint Pod that is created for no workload yet. It cannot be derived from the workload that will claim
/// it; `unique` was never used before.
pub fn warm_mountpoint_pod(node: &str, unique: &str) -> String {
    mountpoint_pod(unique, node)
}

/// The first of `name`, `name-2`, `name-3`, … that is not taken, where `name` may carry such a number already.
pub fn replacement(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // The hash has no dash, so a second dash can only precede such a number.
    let base = match name.rsplit_once('-') {
        Some((base, number)) if base.contains('-') && is_number(number) => base,
        _ => name,
    };
    let mut candidate = base.to_owned();
    let mut number = 1_u64;
    while taken(&candidate) {
        number += 1;
        candidate = format!("{base}-{number}");
    }
    candidate
}

/// Where Mountpoint Pods have the CA certificates of the installation.
pub const AUTHORITY_IN_POD: &str = "/etc/s3-csi/authority";
/// The folder of the volume through which node and Mountpoint Pod communicate, as the pod sees it.
pub const COMM_IN_POD: &str = "/comm";
pub const COMM_VOLUME: &str = "comm";
/// Where a local cache is mounted in the pod, and its volume.
pub const CACHE_IN_POD: &str = "/local-cache";
pub const CACHE_VOLUME: &str = "local-cache";

/// The same folder as the node sees it.
pub fn comm_on_node(kubelet: &Path, mountpoint_pod_uid: &str) -> PathBuf {
    kubelet.join("pods").join(mountpoint_pod_uid).join("volumes/kubernetes.io~empty-dir").join(COMM_VOLUME)
}

/// Where a Mountpoint Pod's bucket is mounted on the node, to be bound into workloads from there.
pub fn source_on_node(kubelet: &Path, mountpoint_pod: &str) -> PathBuf {
    sources_on_node(kubelet).join(mountpoint_pod)
}

pub fn sources_on_node(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER).join("mnt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_makes_the_same_pod_name() {
        assert_eq!(
            mountpoint_pod("a4509011-bd2a-4f37-b1b0-05d715087852", "test-vol"),
            "mp-55f7d2331f3149f00d62d7af839d4cee895e1c68a2f0d96ffd359f79"
        );
    }

    #[test]
    fn a_headroom_pod_is_named_like_the_mountpoint_pod_that_follows_it() {
        let name = headroom_pod("a4509011-bd2a-4f37-b1b0-05d715087852", "test-vol");
        assert_eq!(name, "hr-55f7d2331f3149f00d62d7af839d4cee895e1c68a2f0d96ffd359f79");
    }

    #[test]
    fn replacements_count_up_and_reuse_what_is_free() {
        let taken = |names: &'static [&'static str]| move |name: &str| names.contains(&name);
        assert_eq!(replacement("mp-55f7", taken(&[])), "mp-55f7");
        assert_eq!(replacement("mp-55f7", taken(&["mp-55f7"])), "mp-55f7-2");
        assert_eq!(replacement("mp-55f7-2", taken(&["mp-55f7", "mp-55f7-2"])), "mp-55f7-3");
        assert_eq!(replacement("mp-55f7-3", taken(&["mp-55f7-3"])), "mp-55f7");
        assert_eq!(
            replacement("mp-77", taken(&["mp-77"])),
            "mp-77-2",
            "a hash of digits is no number of ours"
        );
    }

    #[test]
    fn paths_are_kubelets() {
        let kubelet = Path::new("/var/lib/kubelet");
        assert_eq!(
            comm_on_node(kubelet, "u"),
            Path::new("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/comm")
        );
        assert_eq!(
            source_on_node(kubelet, "mp-1"),
            Path::new("/var/lib/kubelet/plugins/s3.csi.scality.com/mnt/mp-1")
        );
    }

    #[test]
    fn names_are_those_that_the_api_server_accepts() {
        let long = "a".repeat(63);
        for (name, namespace, object) in [
            ("tenant-1", true, true),
            (&long, true, true),
            (&format!("{long}a"), false, true),
            ("a.b", false, true),
            (&format!("{long}.{long}.{long}.{long}"), false, false),
            ("", false, false),
            ("a..b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a_b", false, false),
        ] {
            assert_eq!((is_namespace_name(name), is_object_name(name)), (namespace, object), "{name}");
        }
    }
}
