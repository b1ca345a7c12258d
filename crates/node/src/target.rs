//! Where kubelet wants a bucket: the path alone tells which pod and which volume it is for.

use std::path::{Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum TargetError {
    #[error("Target path not provided")]
    Missing,
    #[error(
        "target path `{0}` is not of the form …/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount below {1}"
    )]
    Form(String, PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub path: PathBuf,
    pub pod_uid: String,
    /// Of the `PersistentVolume`, which nothing else tells.
    pub volume_name: String,
}

impl Target {
    /// `<kubelet>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`, where the last name says nothing.
    pub fn parse(path: &str, kubelet: &Path) -> Result<Self, TargetError> {
        if path.is_empty() {
            return Err(TargetError::Missing);
        }
        let wrong = || TargetError::Form(path.to_owned(), kubelet.to_owned());
        let relative = Path::new(path).strip_prefix(kubelet).map_err(|_| wrong())?;
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
            _ => Err(wrong()),
        }
    }

    /// If it is one, as the mount table has it.
    pub fn of_mount(point: &Path, kubelet: &Path) -> Option<Self> {
        Self::parse(point.to_str()?, kubelet).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_tells_pod_and_volume_and_leads_nowhere_else() {
        let kubelet = Path::new("/var/lib/kubelet");
        let path = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";
        let target = Target { path: path.into(), pod_uid: "uid-1".into(), volume_name: "pv-1".into() };
        assert_eq!(Target::parse(path, kubelet).unwrap(), target);
        assert_eq!(Target::of_mount(Path::new(path), kubelet), Some(target));
        assert!(matches!(Target::parse("", kubelet), Err(TargetError::Missing)));
        for wrong in [
            "/etc/x",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/../mount",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/..",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v",
            "relative",
        ] {
            assert!(matches!(Target::parse(wrong, kubelet), Err(TargetError::Form(..))), "{wrong}");
        }
    }
}
