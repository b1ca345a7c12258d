//! Mounts a source: the FUSE mount, the hand-over of its descriptor, and the mounter's reply.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use contract::mountpoint_pod::MountpointPod;
use contract::options::MountOption;
use contract::volume::AuthenticationSource;
use mounter::handover::{MountRequest, Purpose};

use crate::comm;
use crate::context::Context;
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
    let mount_request = mount_request(context, request, pod, credentials, Purpose::Mount).await;
    // Before the hand-over: a mounter that follows must not be taken for the one that had it.
    let mounter = comm::open(&context.kubelet, &pod.uid).ok().as_ref().and_then(comm::mounter);
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
    } else if let Err(error) = kernel::detach(safe_path) {
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

pub(super) async fn mount_request(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
    credentials: &MountCredentials,
    purpose: Purpose,
) -> MountRequest {
    let mut arguments = request.arguments.clone();
    if let Some(size) = pod.cache_mebibytes.filter(|_| arguments.has(MountOption::Cache)) {
        arguments.set_if_absent(MountOption::MaxCacheSize, Some(&size.to_string()));
    }
    context.installation.addressing.apply(&request.volume, &mut arguments);
    arguments.set(MountOption::UserAgentPrefix, Some(&user_agent(context, credentials.source).await));
    let mut environment = context.installation.environment.clone();
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
async fn user_agent(context: &Context, source: AuthenticationSource) -> String {
    let (version, credential_source) = (env!("CARGO_PKG_VERSION"), source.as_str());
    let kubernetes = context.cache.cluster_version().await;
    format!("s3-csi-driver/{version} credential-source#{credential_source} k8s/{kubernetes}")
}
