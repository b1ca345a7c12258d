//! Mounts the bucket of a Mountpoint Pod that was running when it was claimed, before the kubelet asks for it. The kubelet
//! takes 0.2 to 0.3 s to ask and looks only every 0.3 s whether a pod's volumes are there, so that a mount that begins with
//! its request costs the pod another round. Whatever fails here, the kubelet's own request tries again and reports.

use std::collections::HashSet;
use std::sync::Arc;

use contract::attachment::AttachmentSpec;
use contract::authentication::AuthenticationSource;
use contract::mountpoint_pod::{EarlyMount, MountpointPod};
use mounter::handover::client::listens;
use service::csi::volume_capability::access_mode::Mode;
use service::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use service::csi::{NodePublishVolumeRequest, VolumeCapability};
use tokio_util::sync::CancellationToken;

use super::error::{PublishError, kernel_error};
use super::mount_credentials::write_credentials;
use super::{mount_table, source};
use crate::comm;
use crate::context::Context;
use crate::metrics::Early;
use crate::request::PublishRequest;
use crate::target::Target;

pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    // UIDs of pods. Once is enough: later it is the kubelet's or the healing's turn.
    let mut tried = HashSet::new();
    let mut changes = context.cache.changes();
    loop {
        changes.borrow_and_update();
        let claimed = context.cache.pods().into_iter().filter(|pod| pod.early_mount.is_some());
        let claimed: Vec<MountpointPod> = claimed.collect();
        tried.retain(|uid| claimed.iter().any(|pod| pod.uid == *uid));
        for pod in claimed.into_iter().filter(|pod| !tried.contains(&pod.uid)).collect::<Vec<_>>() {
            // The claim comes before its attachment.
            let Some(attachment) = context.cache.attachment_naming(&pod.name) else { continue };
            tried.insert(pod.uid.clone());
            let context = Arc::clone(&context);
            tokio::spawn(async move {
                let result = mount(&context, &attachment.spec, &pod).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, mountpoint_pod = pod.name, "not mounted early");
                    Early::Failed
                });
                context.metrics.early_mount(result);
            });
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn mount(context: &Context, spec: &AttachmentSpec, pod: &MountpointPod) -> Result<Early, PublishError> {
    let Some(request) = request(context, spec, pod) else { return Ok(Early::NotPossible) };
    let _lock = context.locks.mountpoint_pod(&pod.name).await;
    // Looked at under the lock: it may be draining, or the kubelet may have been faster.
    let current = context.cache.pod(&pod.name);
    let is_same = current.is_some_and(|current| current.uid == pod.uid && !current.is_ending());
    let source = context.source(&pod.name);
    let is_mounted = mount_table(context, &source)?.top(&source).is_some();
    if !is_same || is_mounted || !listens(&comm::path(&context.kubelet, &pod.uid)) {
        return Ok(Early::NotNeeded);
    }
    let credentials = write_credentials(context, &request, pod)?;
    let safe_source = context.kubelet.create(&source).map_err(kernel_error("create", &source))?;
    source::mount(context, &request, pod, &safe_source, &source, &credentials).await?;
    Ok(Early::Mounted)
}

/// What the kubelet will ask for; `None` if only the kubelet has the keys for it, or if the pod is not the attachment's.
fn request(context: &Context, spec: &AttachmentSpec, pod: &MountpointPod) -> Option<PublishRequest> {
    let EarlyMount { attributes, mount_options } = pod.early_mount.clone()?;
    let is_trusted = pod.node.as_deref() == Some(context.cache.node())
        && pod.volume_name.as_ref() == Some(&spec.persistent_volume_name)
        && pod.authentication == Some(AuthenticationSource::Driver);
    let workload = spec.mountpoint_pods.get(&pod.name)?.first().filter(|_| is_trusted)?;
    let kubelet = context.kubelet.path();
    let mount = MountVolume {
        mount_flags: mount_options,
        volume_mount_group: spec.workload_fs_group.clone(),
        ..MountVolume::default()
    };
    let target = Target::path_of(kubelet, &workload.workload_pod_uid, &spec.persistent_volume_name);
    let request = NodePublishVolumeRequest {
        volume_id: spec.volume_id.clone(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }),
        volume_context: attributes.into_iter().collect(),
        ..NodePublishVolumeRequest::default()
    };
    let request = PublishRequest::parse(request, kubelet).ok()?;
    (request.volume.authentication == AuthenticationSource::Driver).then_some(request)
}
