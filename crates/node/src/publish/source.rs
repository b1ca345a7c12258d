//! Mounts a source: the FUSE mount, the hand-over of its descriptor, and the mounter's reply.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use contract::mountpoint_pod::MountpointPod;
use contract::options::MountOption;
use contract::volume::AuthenticationSource;
use mounter::handover::{MountRequest, Purpose};

use crate::comm;
use crate::context::{Context, Installation};
use crate::credentials::MountCredentials;
use crate::kernel;
use crate::mounter_client::{MounterError, hand_over};
use crate::publish::error::{PublishError, kernel_error};
use crate::request::PublishRequest;
use crate::safe_path::SafePath;

/// Leaves nothing mounted if it fails.
pub(crate) async fn mount(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
    safe_path: &SafePath,
    source: &Path,
    credentials: &MountCredentials,
) -> Result<(), PublishError> {
    let started = Instant::now();
    let device =
        kernel::mount_source(safe_path, request.source_read_only).map_err(kernel_error("mount", source))?;
    let mount_request = mount_request_of(context, request, pod, credentials, Purpose::Mount).await;
    // Before the hand-over: a mounter that follows must not be taken for the one that had it.
    let mounter = comm::mounter_of(&context.kubelet, &pod.uid);
    let descriptor = Arc::new(device);
    let reply = hand_over(&context.kubelet, &pod.uid, mount_request, Arc::clone(&descriptor)).await;
    let outcome = reply.map_err(failed(context, pod)).map(|serving| {
        tracing::info!(
            volume_id = request.volume_id,
            mountpoint_pod = pod.name,
            version = serving.version,
            trace_id = request.trace_id(),
            milliseconds = started.elapsed().as_millis(),
            "serving"
        );
    });
    if outcome.is_ok() {
        context.keep_descriptor(pod, descriptor, mounter);
        let table = context.mounts.table().unwrap_or_default();
        table.top(source).into_iter().for_each(|mount| kernel::set_read_ahead(mount.device));
    } else if let Err(error) = kernel::blocking_unmount(|| kernel::detach(safe_path)) {
        tracing::warn!(%error, source = %source.display(), "failed to unmount after a failed mount");
    }
    outcome
}

/// Why the mounter of this pod does not serve the mount.
pub(super) fn failed(context: &Context, pod: &MountpointPod) -> impl Fn(MounterError) -> PublishError {
    let (pod, namespace) = (pod.name.clone(), context.installation.mountpoint_namespace.clone());
    move |error| match error {
        MounterError::Refused(refused) => PublishError::MountFailed { pod: pod.clone(), refused },
        MounterError::NoReply(source) => {
            PublishError::HandOver { pod: pod.clone(), namespace: namespace.clone(), source }
        }
    }
}

pub(super) async fn mount_request_of(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
    credentials: &MountCredentials,
    purpose: Purpose,
) -> MountRequest {
    let kubernetes = context.cache.cluster_version().await;
    mount_request(&context.installation, request, pod.cache_mebibytes, credentials, &kubernetes, purpose)
}

/// What the mounter gets. Tests of the mount process make theirs of it, so that they mount as the node does.
pub fn mount_request(
    installation: &Installation,
    request: &PublishRequest,
    cache_mebibytes: Option<u128>,
    credentials: &MountCredentials,
    kubernetes: &str,
    purpose: Purpose,
) -> MountRequest {
    let mut arguments = request.arguments.clone();
    if let Some(size) = cache_mebibytes.filter(|_| arguments.has(MountOption::Cache)) {
        arguments.set_if_absent(MountOption::MaxCacheSize, Some(&size.to_string()));
    }
    installation.addressing.apply(&request.volume, &mut arguments);
    arguments.set(MountOption::UserAgentPrefix, Some(&user_agent(credentials.source, kubernetes)));
    let mut environment = installation.environment.clone();
    environment.extend(request.environment.clone());
    environment.extend(credentials.credentials.variables());
    MountRequest {
        volume_id: request.volume_id.clone(),
        trace_id: request.trace_id(),
        bucket: request.volume.bucket.clone(),
        arguments: arguments.render(),
        environment,
        purpose,
    }
}

/// In the reference's format, because people filter the S3 server's logs by it.
fn user_agent(source: AuthenticationSource, kubernetes: &str) -> String {
    let (version, credential_source) = (env!("CARGO_PKG_VERSION"), source.as_str());
    format!("s3-csi-driver/{version} credential-source#{credential_source} k8s/{kubernetes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Flags;
    use clap::Parser as _;
    use mounter::credentials::Credentials;
    use service::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
    use service::csi::{NodePublishVolumeRequest, VolumeCapability};

    fn requested(mount_flags: &[&str], cache_mebibytes: Option<u128>) -> MountRequest {
        let mount_flags = mount_flags.iter().map(|flag| (*flag).to_owned()).collect();
        let attributes = [("bucketName", "bucket"), ("mountpointEnv.HTTPS_PROXY", "http://of-the-volume")];
        let request = NodePublishVolumeRequest {
            volume_id: "id".to_owned(),
            target_path: "/kubelet/pods/uid/volumes/kubernetes.io~csi/volume/mount".to_owned(),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
                access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..MountVolume::default() })),
            }),
            volume_context: attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..NodePublishVolumeRequest::default()
        };
        let request = PublishRequest::parse(request, Path::new("/kubelet")).unwrap();
        let flags = ["s3-csi-node", "--node-name=n", "--region=eu-1", "--mountpoint-https-proxy=http://p"];
        let installation = Installation::of(&Flags::parse_from(flags));
        let credentials = MountCredentials {
            credentials: Credentials::StaticKeys { file: "keys".to_owned(), profile: "ours".to_owned() },
            source: AuthenticationSource::Driver,
        };
        mount_request(&installation, &request, cache_mebibytes, &credentials, "v1.36.3", Purpose::Mount)
    }

    #[test]
    fn a_cache_is_as_large_as_its_pod_allows_unless_the_volume_says_less() {
        for (flags, limit, expected) in [
            (&["cache=/cache"][..], Some(972), Some("--max-cache-size=972")),
            (&["cache=/cache", "max-cache-size=100"], Some(972), Some("--max-cache-size=100")),
            (&["cache=/cache"], None, None),
            (&[], Some(972), None),
        ] {
            let arguments = requested(flags, limit).arguments;
            let size = arguments.iter().find(|one| one.starts_with("--max-cache-size"));
            assert_eq!(size.map(String::as_str), expected, "{flags:?} {limit:?}");
        }
    }

    #[test]
    fn a_mount_has_what_the_installation_the_volume_and_its_credentials_add() {
        let MountRequest { arguments, environment, .. } = requested(&["allow-delete"], None);
        let agent = concat!(
            "--user-agent-prefix=s3-csi-driver/",
            env!("CARGO_PKG_VERSION"),
            " credential-source#driver k8s/v1.36.3"
        );
        assert_eq!(arguments, ["--allow-delete", "--allow-root", "--force-path-style", agent]);
        assert_eq!(environment["AWS_REGION"], "eu-1");
        assert_eq!(environment["HTTPS_PROXY"], "http://of-the-volume", "the volume's comes first");
        assert_eq!(environment["AWS_PROFILE"], "ours");
    }
}
