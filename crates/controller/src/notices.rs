//! Which Events a reconcile calls for. Pure.

use contract::attachment::WorkloadAttachment;
use contract::mountpoint_pod::StartFailure;
use contract::options::IgnoredOption;
use contract::quantity::Quantity;
use contract::sharing::SharingKey;
use contract::volume::VolumeError;
use service::events;

use crate::apply::StepError;
use crate::events::{Notice, Reason};
use crate::group::Group;
use crate::observed::Workload;
use crate::step::Step;
use crate::world::View;

/// Why workloads get no Mountpoint Pod.
pub fn failure(
    key: &SharingKey,
    invalid: Option<&VolumeError>,
    failed: Option<&StepError>,
) -> Option<(Reason, String)> {
    if let Some(error) = invalid {
        return Some((Reason::InvalidVolumeAttributes, error.to_string()));
    }
    match failed {
        Some(StepError::NoVolume { .. }) => {
            let message = format!("PersistentVolume {} no longer exists", key.volume_name);
            Some((Reason::PersistentVolumeMissing, message))
        }
        Some(StepError::Refused { message, .. }) => {
            let message = format!("the API server refuses the Mountpoint Pod or its attachment: {message}");
            Some((Reason::MountpointPodRejected, message))
        }
        _ => None,
    }
}

/// What is questionable about a volume that is served all the same.
pub fn volume_warnings(
    view: &View,
    ignored: &[IgnoredOption],
    cache_limit: Option<&Quantity>,
    workloads: &[Workload],
) -> Vec<Notice> {
    let SharingKey { volume_name, volume_id, .. } = &view.key;
    let duplicate = view.other_with_handle.as_ref().map(|other| {
        let message = format!(
            "PersistentVolumes {volume_name} and {other} have the same volumeHandle `{volume_id}`; the driver may confuse \
             them: give each PersistentVolume a unique `volumeHandle`"
        );
        (Reason::DuplicateVolumeHandle, message)
    });
    let limited = cache_limit.map(|limit| {
        let message = format!(
            "the cache of PersistentVolume {volume_name} has no size limit, so the default {limit} applies: set \
             `cacheEmptyDirSizeLimit`"
        );
        (Reason::CacheSizeLimited, message)
    });
    let ignored = (!ignored.is_empty()).then(|| {
        let names: Vec<&str> = ignored.iter().map(AsRef::as_ref).collect();
        let message =
            format!("these mount options are not supported and have no effect: {}", names.join(", "));
        (Reason::MountOptionsIgnored, message)
    });
    let warnings = [duplicate, limited, ignored].into_iter().flatten();
    let notice = |(reason, message)| Notice {
        workloads: workloads.to_vec(),
        reason,
        about: events::volume(volume_name),
        message,
    };
    warnings.map(notice).collect()
}

/// For the workloads whose Mountpoint Pod was replaced by the steps that were `done`.
pub fn replacements(namespace: &str, view: &View, group: &Group, done: &[Step]) -> Vec<Notice> {
    let is_left = |pod: &str| {
        let leaves = |step: &Step| matches!(step, Step::UpdateAttachment { entries, .. } if entries.get(pod) == Some(&None));
        done.iter().any(leaves)
    };
    let is_created =
        |pod: &str| done.iter().any(|step| matches!(step, Step::CreatePod { name, .. } if name == pod));
    let entries = group.attachments.iter().flat_map(|attachment| &attachment.spec.mountpoint_pods);
    let replaced = entries.filter_map(|(name, listed)| {
        let cause = match group.pods.get(name) {
            Some(pod) if pod.is_ending() && is_left(name) => match &pod.start_failure {
                Some(failure) => failure.to_string(),
                None => "it was deleted".to_owned(),
            },
            None if view.lost.contains(name) && is_created(name) => "it disappeared".to_owned(),
            _ => return None,
        };
        let mut workloads = listed_workloads(listed, view);
        workloads.retain(|workload| !group.gone.contains(&workload.uid));
        Some(Notice {
            workloads,
            reason: Reason::MountpointPodReplaced,
            about: events::pod(namespace, name, None),
            message: format!("Mountpoint Pod {namespace}/{name} is replaced ({cause})"),
        })
    });
    replaced.collect()
}

/// For the workloads whose Mountpoint Pod cannot start.
pub fn start_failures(namespace: &str, view: &View) -> Vec<Notice> {
    let entries = view.attachments.iter().flat_map(|attachment| &attachment.spec.mountpoint_pods);
    let failed = entries.filter_map(|(name, listed)| {
        let failure = view.pods.get(name)?.start_failure.as_ref()?;
        Some(Notice {
            workloads: listed_workloads(listed, view),
            reason: failure.into(),
            about: events::pod(namespace, name, None),
            message: start_failure_message(namespace, name, failure),
        })
    });
    failed.collect()
}

pub fn start_failure_message(namespace: &str, name: &str, failure: &StartFailure) -> String {
    format!("Mountpoint Pod {namespace}/{name} cannot serve ({}): {}", failure.reason, failure.message)
}

fn listed_workloads(listed: &[WorkloadAttachment], view: &View) -> Vec<Workload> {
    let is_listed = |workload: &&Workload| listed.iter().any(|entry| entry.workload_pod_uid == workload.uid);
    view.workloads.iter().filter(is_listed).cloned().collect()
}
