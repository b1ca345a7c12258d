//! A `NodePublishVolume` request, parsed and checked once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use contract::arguments::Arguments;
use contract::authentication::{AuthenticationSource, SecretPresence};
use contract::keys::Keys;
use contract::options::MountOption;
use contract::trace;
use contract::volume::{Volume, VolumeError, attribute};
use contract::volume_plan::VolumePlan;
use service::csi::NodePublishVolumeRequest;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use service::keys::{self, KeysError};
use thiserror::Error;

use crate::identity::{TOKENS, Tokens};
use crate::target::{Target, TargetError};

/// Keys by which the kubelet describes the workload (`podInfoOnMount`).
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

#[derive(Debug, Error)]
pub enum RequestError {
    #[error("Volume ID not provided")]
    VolumeId,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the target path belongs to pod {0}, but `csi.storage.k8s.io/pod.uid` is {1}")]
    OtherPod(String, String),
    #[error("Volume capability not provided")]
    Capability,
    #[error("block volumes are not supported: set `volumeMode: Filesystem`")]
    Block,
    #[error("Volume capability not supported: access mode {0}; use ReadWriteMany or ReadOnlyMany")]
    AccessMode(String),
    #[error("inline volumes are not supported: use a PersistentVolume or a claim template")]
    Ephemeral,
    #[error("invalid volume mount group \"{0}\": it must be a number")]
    Group(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// One workload's use of one volume. `Debug` shows no keys.
#[derive(Clone, Debug)]
pub struct PublishRequest {
    /// When the kubelet sent it.
    pub arrived: Instant,
    pub volume_id: String,
    pub volume_name: String,
    pub pod_uid: String,
    pub pod_name: String,
    pub pod_namespace: String,
    pub service_account: String,
    pub target: PathBuf,
    /// Whether this workload's target mount is read-only.
    pub read_only: bool,
    /// Whether the source mount is read-only, for every workload that shares it.
    pub source_read_only: bool,
    /// `ReadWriteOncePod`: no other pod on this node may have the volume mounted.
    pub single_pod: bool,
    pub volume: Volume,
    /// Whose credentials the volume asks for. `None` if the request does not show it; the Mountpoint Pod does.
    pub authentication: Option<AuthenticationSource>,
    pub arguments: Arguments,
    pub environment: BTreeMap<String, String>,
    /// The keys in the Secret that `nodePublishSecretRef` names, or what is wrong with them. Not an error here, because
    /// a volume that uses the driver's keys does not need them.
    pub secret_keys: Result<Keys, KeysError>,
    /// Of the workload's service account, if the `CSIDriver` requests them.
    pub tokens: Tokens,
}

impl PublishRequest {
    /// The workload's trace id, for the logs.
    pub fn trace_id(&self) -> String {
        trace::id(&self.pod_uid)
    }

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
            // All the same to S3; Kubernetes enforces the limit to one node.
            Mode::MultiNodeMultiWriter
            | Mode::SingleNodeWriter
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter => false,
            Mode::Unknown | Mode::MultiNodeSingleWriter => {
                return Err(RequestError::AccessMode(mode.as_str_name().to_owned()));
            }
        };
        let mut secrets: BTreeMap<String, String> = request.secrets.into_iter().collect();
        // Sent for every volume, so it says nothing about a Secret.
        let tokens = secrets.remove(TOKENS).or_else(|| context.get(TOKENS).cloned()).unwrap_or_default();
        let secret = if secrets.is_empty() { SecretPresence::Unknown } else { SecretPresence::Present };
        // The controller reports ignored options in a Warning event.
        let VolumePlan { volume, mut arguments, environment, ignored: _ } =
            VolumePlan::parse(&context, secret, &mount.mount_flags)?;
        let attribute = context.get(attribute::AUTHENTICATION_SOURCE).map_or("", String::as_str);
        let authentication =
            AuthenticationSource::of_request(attribute, secret).map_err(VolumeError::from)?;
        let source_read_only = readers_only || arguments.has(MountOption::ReadOnly);
        if source_read_only {
            arguments.set_if_absent(MountOption::ReadOnly, None);
        }
        let fs_group = mount.volume_mount_group;
        if !fs_group.is_empty() {
            fs_group.parse::<u32>().map_err(|_| RequestError::Group(fs_group.clone()))?;
            // The mount process cannot assign files to group 0, and root does not need it.
            if fs_group != "0" {
                arguments.set_if_absent(MountOption::Gid, Some(&fs_group));
            }
            arguments.set_if_absent(MountOption::DirMode, Some("770"));
            arguments.set_if_absent(MountOption::FileMode, Some("660"));
            if !arguments.has(MountOption::AllowRoot) {
                arguments.set_if_absent(MountOption::AllowOther, None);
            }
        }
        if !arguments.has(MountOption::AllowOther) {
            arguments.set_if_absent(MountOption::AllowRoot, None);
        }
        Ok(Self {
            arrived: Instant::now(),
            volume_id: request.volume_id,
            volume_name,
            pod_uid,
            pod_name: context.get(POD_NAME).cloned().unwrap_or_default(),
            pod_namespace: context.get(POD_NAMESPACE).cloned().unwrap_or_default(),
            service_account: context.get(SERVICE_ACCOUNT).cloned().unwrap_or_default(),
            target,
            read_only: request.readonly,
            source_read_only,
            single_pod: mode == Mode::SingleNodeSingleWriter,
            volume,
            authentication,
            arguments,
            environment,
            secret_keys: keys::of_secret(&secrets, "the Secret of nodePublishSecretRef"),
            tokens: Tokens::parse(&tokens),
        })
    }
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

    fn parse(request: NodePublishVolumeRequest) -> Result<PublishRequest, RequestError> {
        PublishRequest::parse(request, Path::new("/var/lib/kubelet"))
    }

    fn arguments(flags: &[&str]) -> Vec<String> {
        parse(request(flags, Mode::MultiNodeMultiWriter)).unwrap().arguments.render()
    }

    #[test]
    fn every_mount_gets_the_arguments_it_needs() {
        assert_eq!(arguments(&[]), ["--allow-root"]);
        assert_eq!(arguments(&["allow-other"]), ["--allow-other"]);
        assert_eq!(arguments(&["--endpoint-url http://evil", "prefix=a/"]), ["--allow-root", "--prefix=a/"]);
    }

    #[test]
    fn the_fs_group_fills_in_only_what_the_volume_leaves_open() {
        let mut with_group = request(&["file-mode=640"], Mode::MultiNodeMultiWriter);
        let capability = with_group.volume_capability.as_mut().unwrap();
        let Some(AccessType::Mount(mount)) = &mut capability.access_type else { panic!() };
        mount.volume_mount_group = "2000".into();
        assert_eq!(
            parse(with_group).unwrap().arguments.render(),
            ["--allow-other", "--dir-mode=770", "--file-mode=640", "--gid=2000"]
        );
    }

    #[test]
    fn read_only_applies_to_the_source_or_to_one_target() {
        for (flags, mode, all) in [
            (&["read-only"][..], Mode::MultiNodeMultiWriter, true),
            (&[], Mode::MultiNodeReaderOnly, true),
            (&[], Mode::SingleNodeSingleWriter, false),
        ] {
            let publish = parse(request(flags, mode)).unwrap();
            assert_eq!((publish.source_read_only, publish.read_only), (all, false));
            assert_eq!(publish.arguments.has(MountOption::ReadOnly), all);
        }
        let with_value = parse(request(&["read-only=false"], Mode::MultiNodeMultiWriter));
        assert!(matches!(with_value, Err(RequestError::Volume(VolumeError::Option(_)))));
        let mut mine = request(&[], Mode::MultiNodeMultiWriter);
        mine.readonly = true;
        let publish = parse(mine).unwrap();
        assert_eq!((publish.source_read_only, publish.read_only), (false, true));
    }

    /// The kubelet then sends secrets for every volume, with a Secret or without.
    #[test]
    fn tokens_are_no_secret_of_the_volume() {
        const SENT: &str = r#"{"sts.amazonaws.com": {"token": "secret.jwt"}}"#;
        let in_context = |request: &mut NodePublishVolumeRequest| {
            request.volume_context.insert(TOKENS.into(), SENT.into());
        };
        let in_secrets = |request: &mut NodePublishVolumeRequest| {
            request.secrets.insert(TOKENS.into(), SENT.into());
        };
        for put in [&in_context as &dyn Fn(&mut NodePublishVolumeRequest), &in_secrets] {
            let mut with_tokens = request(&[], Mode::MultiNodeMultiWriter);
            put(&mut with_tokens);
            let publish = parse(with_tokens).unwrap();
            assert!(format!("{:?}", publish.tokens).contains("sts.amazonaws.com"));
            assert_eq!(publish.volume.authentication, AuthenticationSource::Driver);
            assert!(!format!("{publish:?}").contains("jwt"));
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
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
