//! What kubelet asks for, checked once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::arguments::Arguments;
use contract::authentication::SecretRef;
use contract::names::CACHE_IN_POD;
use contract::options::ATTEMPTS;
use contract::volume::{Cache, Volume, VolumeError, cache_share};
use service::csi::NodePublishVolumeRequest;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use thiserror::Error;

use crate::target::{Target, TargetError};

/// How kubelet hands the workload's name on (`podInfoOnMount`).
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

#[derive(Debug, Error)]
pub enum RequestError {
    #[error("Volume ID not provided")]
    VolumeId,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the target path is of pod `{0}`, but the request says pod `{1}`")]
    OtherPod(String, String),
    #[error("Volume capability not provided")]
    Capability,
    #[error("block volumes are not supported: a bucket is a file system; use volumeMode: Filesystem")]
    Block,
    #[error("Volume capability not supported: access mode {0}; use ReadWriteMany or ReadOnlyMany")]
    AccessMode(String),
    #[error("inline volumes are not supported: use a PersistentVolume or a claim template")]
    Ephemeral,
    #[error("the group of the volume is `{0}`, which is not a number")]
    Group(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("max-cache-size is `{0}`, more than cacheEmptyDirSizeLimit allows ({1} MiB): lower it")]
    CacheTooLarge(String, u128),
}

/// One workload's use of one volume. Not to be printed: it has secrets.
pub struct Publish {
    pub volume_id: String,
    pub volume_name: String,
    pub pod_uid: String,
    pub pod_name: String,
    pub pod_namespace: String,
    pub target: PathBuf,
    /// For this workload alone.
    pub read_only: bool,
    /// For everybody who shares the source.
    pub source_read_only: bool,
    /// Nobody else on this node may have it meanwhile (`ReadWriteOncePod`).
    pub alone: bool,
    pub volume: Volume,
    pub arguments: Arguments,
    pub environment: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, String>,
}

impl Publish {
    pub fn parse(request: NodePublishVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        if request.volume_id.is_empty() {
            return Err(RequestError::VolumeId);
        }
        let context: BTreeMap<String, String> = request.volume_context.into_iter().collect();
        let Target { path: target, pod_uid, volume_name } = Target::parse(&request.target_path, kubelet)?;
        if let Some(said) = context.get(POD_UID).filter(|said| !said.is_empty() && **said != pod_uid) {
            return Err(RequestError::OtherPod(pod_uid, said.clone()));
        }
        if context.get(EPHEMERAL).is_some_and(|ephemeral| ephemeral == "true") {
            return Err(RequestError::Ephemeral);
        }
        let capability = request.volume_capability.ok_or(RequestError::Capability)?;
        let mount = match capability.access_type {
            Some(AccessType::Block(_)) => return Err(RequestError::Block),
            Some(AccessType::Mount(mount)) => mount,
            None => return Err(RequestError::Capability),
        };
        let mode = capability.access_mode.map(|mode| mode.mode()).unwrap_or_default();
        let readers_only = match mode {
            Mode::MultiNodeReaderOnly | Mode::SingleNodeReaderOnly => true,
            // To S3 they are all the same; one node is what the cluster sees to.
            Mode::MultiNodeMultiWriter
            | Mode::SingleNodeWriter
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter => false,
            Mode::Unknown | Mode::MultiNodeSingleWriter => {
                return Err(RequestError::AccessMode(mode.as_str_name().to_owned()));
            }
        };
        let mut arguments = Arguments::parse(&mount.mount_flags);
        let secret = if request.secrets.is_empty() { SecretRef::Unknown } else { SecretRef::Present };
        // The controller tells the workload's owner which.
        arguments.strip();
        let volume = Volume::parse(&context, secret, &arguments)?;
        let mut environment = volume.environment.clone();
        if let Some(attempts) = arguments.value(ATTEMPTS) {
            environment.insert("AWS_MAX_ATTEMPTS".to_owned(), attempts.to_owned());
        }
        arguments.remove(ATTEMPTS);
        let source_read_only = readers_only || arguments.has("read-only");
        if source_read_only {
            arguments.set_if_absent("read-only", None);
        }
        let fs_group = mount.volume_mount_group;
        if !fs_group.is_empty() {
            fs_group.parse::<u32>().map_err(|_| RequestError::Group(fs_group.clone()))?;
            // Root's group cannot be given to files; nothing is lost, as root may do everything anyway.
            if fs_group != "0" {
                arguments.set_if_absent("gid", Some(&fs_group));
            }
            arguments.set_if_absent("dir-mode", Some("770"));
            arguments.set_if_absent("file-mode", Some("660"));
            if !arguments.has("allow-root") {
                arguments.set_if_absent("allow-other", None);
            }
        }
        if !arguments.has("allow-other") {
            arguments.set_if_absent("allow-root", None);
        }
        arguments.set_if_absent("force-path-style", None);
        place_cache(&volume.cache, &mut arguments)?;
        Ok(Self {
            volume_id: request.volume_id,
            volume_name,
            pod_uid,
            pod_name: context.get(POD_NAME).cloned().unwrap_or_default(),
            pod_namespace: context.get(POD_NAMESPACE).cloned().unwrap_or_default(),
            target,
            read_only: request.readonly,
            source_read_only,
            alone: mode == Mode::SingleNodeSingleWriter,
            volume,
            arguments,
            environment,
            secrets: request.secrets.into_iter().collect(),
        })
    }
}

/// Wherever the user wanted it: it is in the Mountpoint Pod, and there is one place for it there.
fn place_cache(cache: &Cache, arguments: &mut Arguments) -> Result<(), RequestError> {
    if *cache == Cache::None {
        return Ok(());
    }
    arguments.set("cache", Some(CACHE_IN_POD));
    if let Cache::EmptyDir { size_limit: Some(limit), in_memory: false } = cache {
        let most = cache_share(limit);
        match arguments.value("max-cache-size").map(str::to_owned) {
            Some(given) if given.parse::<u128>().is_ok_and(|given| given > limit.units() / (1024 * 1024)) => {
                return Err(RequestError::CacheTooLarge(given, limit.units() / (1024 * 1024)));
            }
            Some(_) => {}
            None => arguments.set("max-cache-size", Some(&most.to_string())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use service::csi::VolumeCapability;
    use service::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    const TARGET: &str = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";

    fn request(flags: &[&str], mode: Mode) -> NodePublishVolumeRequest {
        let mount = MountVolume {
            mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            ..MountVolume::default()
        };
        NodePublishVolumeRequest {
            volume_id: "handle".into(),
            target_path: TARGET.into(),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode { mode: mode.into() }),
                access_type: Some(AccessType::Mount(mount)),
            }),
            volume_context: [("bucketName".to_owned(), "bucket".to_owned())].into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn parse(request: NodePublishVolumeRequest) -> Result<Publish, RequestError> {
        Publish::parse(request, Path::new("/var/lib/kubelet"))
    }

    fn arguments(flags: &[&str]) -> Vec<String> {
        parse(request(flags, Mode::MultiNodeMultiWriter)).unwrap().arguments.render()
    }

    #[test]
    fn options_get_what_every_mount_needs() {
        assert_eq!(arguments(&[]), ["--allow-root", "--force-path-style"]);
        assert_eq!(arguments(&["allow-other"]), ["--allow-other", "--force-path-style"]);
        assert_eq!(
            arguments(&["--endpoint-url http://evil", "prefix=a/"]),
            ["--allow-root", "--force-path-style", "--prefix=a/"]
        );
    }

    #[test]
    fn a_group_gets_in_where_the_user_said_nothing() {
        let mut with_group = request(&["file-mode=640"], Mode::MultiNodeMultiWriter);
        let capability = with_group.volume_capability.as_mut().unwrap();
        let Some(AccessType::Mount(mount)) = &mut capability.access_type else { panic!() };
        mount.volume_mount_group = "2000".into();
        assert_eq!(
            parse(with_group).unwrap().arguments.render(),
            ["--allow-other", "--dir-mode=770", "--file-mode=640", "--force-path-style", "--gid=2000"]
        );
    }

    #[test]
    fn read_only_is_for_all_or_for_one() {
        for (flags, mode, all) in [
            (&["read-only"][..], Mode::MultiNodeMultiWriter, true),
            (&[], Mode::MultiNodeReaderOnly, true),
            (&[], Mode::SingleNodeSingleWriter, false),
        ] {
            let publish = parse(request(flags, mode)).unwrap();
            assert_eq!((publish.source_read_only, publish.read_only), (all, false));
            assert_eq!(publish.arguments.has("read-only"), all);
        }
        let with_value = parse(request(&["read-only=false"], Mode::MultiNodeMultiWriter));
        assert!(matches!(with_value, Err(RequestError::Volume(VolumeError::Option(_)))));
        let mut mine = request(&[], Mode::MultiNodeMultiWriter);
        mine.readonly = true;
        let publish = parse(mine).unwrap();
        assert_eq!((publish.source_read_only, publish.read_only), (false, true));
    }

    #[test]
    fn a_cache_is_where_the_pod_has_it() {
        assert!(arguments(&["cache /tmp/mine"]).contains(&"--cache=/local-cache".to_owned()));
        let mut limited = request(&[], Mode::MultiNodeMultiWriter);
        limited.volume_context.extend(
            [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi")]
                .map(|(key, value)| (key.into(), value.into())),
        );
        assert!(
            parse(limited.clone()).unwrap().arguments.render().contains(&"--max-cache-size=972".to_owned())
        );
        let capability = limited.volume_capability.as_mut().unwrap();
        let Some(AccessType::Mount(mount)) = &mut capability.access_type else { panic!() };
        mount.mount_flags = vec!["max-cache-size=2000".into()];
        assert!(matches!(parse(limited), Err(RequestError::CacheTooLarge(..))));
    }

    #[test]
    fn attempts_are_a_variable() {
        let publish = parse(request(&["aws-max-attempts 4"], Mode::MultiNodeMultiWriter)).unwrap();
        assert_eq!(publish.environment["AWS_MAX_ATTEMPTS"], "4");
        assert!(!publish.arguments.has("aws-max-attempts"));
        for wrong in ["aws-max-attempts ten", "aws-max-attempts=0", "aws-max-attempts"] {
            let refused = parse(request(&[wrong], Mode::MultiNodeMultiWriter));
            assert!(matches!(refused, Err(RequestError::Volume(VolumeError::Option(_)))), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut block = request(&[], Mode::MultiNodeMultiWriter);
        block.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Block(BlockVolume {}));
        assert!(matches!(parse(block), Err(RequestError::Block)));
        let missing =
            NodePublishVolumeRequest { volume_capability: None, ..request(&[], Mode::MultiNodeMultiWriter) };
        assert!(matches!(parse(missing), Err(RequestError::Capability)));
        assert!(matches!(parse(request(&[], Mode::MultiNodeSingleWriter)), Err(RequestError::AccessMode(_))));
        let mut other = request(&[], Mode::MultiNodeMultiWriter);
        other.volume_context.insert(POD_UID.into(), "uid-2".into());
        assert!(matches!(parse(other), Err(RequestError::OtherPod(..))));
        let nothing = NodePublishVolumeRequest::default();
        assert!(matches!(parse(nothing), Err(RequestError::VolumeId)));
    }
}
