//! A target: where the kubelet wants a bucket mounted. The path names the pod and the volume.

use std::path::{Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum TargetError {
    #[error("Target path not provided")]
    Missing,
    #[error(
        "invalid target path \"{0}\": expected {1}/pods/<pod UID>/volumes/kubernetes.io~csi/<volume>/mount"
    )]
    Invalid(String, PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub path: PathBuf,
    pub pod_uid: String,
    /// Name of the `PersistentVolume`, which no other field of the request has.
    pub volume_name: String,
}

impl Target {
    /// As the kubelet names it.
    pub fn path_of(kubelet: &Path, pod_uid: &str, volume_name: &str) -> PathBuf {
        kubelet.join("pods").join(pod_uid).join("volumes/kubernetes.io~csi").join(volume_name).join("mount")
    }

    /// `<kubelet>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`, whatever the last component is called.
    pub fn parse(path: &str, kubelet: &Path) -> Result<Self, TargetError> {
        if path.is_empty() {
            return Err(TargetError::Missing);
        }
        let invalid = || TargetError::Invalid(path.to_owned(), kubelet.to_owned());
        let relative = Path::new(path).strip_prefix(kubelet).map_err(|_| invalid())?;
        let parts: Vec<&str> = relative.iter().map(|part| part.to_str().unwrap_or("..")).collect();
        match parts.as_slice() {
            ["pods", uid, "volumes", "kubernetes.io~csi", volume, last]
                if [uid, volume, last].iter().all(|part| **part != "..") =>
            {
                Ok(Self {
                    path: kubelet.join(relative),
                    pod_uid: (*uid).to_owned(),
                    volume_name: (*volume).to_owned(),
                })
            }
            _ => Err(invalid()),
        }
    }

    /// The target of a mount in the mount table, if it is one.
    pub fn of_mount(point: &Path, kubelet: &Path) -> Option<Self> {
        Self::parse(point.to_str()?, kubelet).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_pod_and_volume_and_stays_below_the_kubelets_directory() {
        let kubelet = Path::new("/var/lib/kubelet");
        let path = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";
        let target = Target { path: path.into(), pod_uid: "uid-1".into(), volume_name: "pv-1".into() };
        assert_eq!(Target::parse(path, kubelet).unwrap(), target);
        assert_eq!(Target::path_of(kubelet, "uid-1", "pv-1"), target.path);
        assert_eq!(Target::of_mount(Path::new(path), kubelet), Some(target));
        assert!(matches!(Target::parse("", kubelet), Err(TargetError::Missing)));
        for wrong in [
            "/etc/x",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/../mount",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/..",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v",
            "relative",
        ] {
            assert!(matches!(Target::parse(wrong, kubelet), Err(TargetError::Invalid(..))), "{wrong}");
        }
    }
}
