//! What a reconcile has to say: events for the workloads' owners, and the condition of each attachment.

use std::collections::BTreeMap;

use contract::volume::{Volume, VolumeError};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::apply::StepError;
use crate::explain::{self, Reason, condition};
use crate::group::{Group, is_broken};
use crate::observed::{MountpointPod, Phase, Workload};
use crate::reconcile::Reconciler;
use crate::step::Step;
use crate::world::View;

impl Reconciler {
    pub(crate) async fn warn_about_volume(
        &self,
        view: &View,
        volume: Option<&Volume>,
        ignored: &[&str],
        workloads: &[Workload],
    ) {
        let about = explain::volume(&view.key.volume_name);
        if let Some(namesake) = &view.namesake {
            let message = format!(
                "PersistentVolumes {} and {namesake} have the same volumeHandle `{}`; a node may take one for the other: \
                 give each its own",
                view.key.volume_name, view.key.volume_id
            );
            self.explainer.tell(workloads, Reason::DuplicateVolumeHandle, &about, &message).await;
        }
        if let Some(limit) = volume.and_then(|volume| self.writer.cache_limit(volume)) {
            let message = format!(
                "the cache of PersistentVolume {} has no size and gets {limit}: set `cacheEmptyDirSizeLimit`",
                view.key.volume_name
            );
            self.explainer.tell(workloads, Reason::CacheSizeLimited, &about, &message).await;
        }
        if !ignored.is_empty() {
            let message =
                format!("these mount options are not supported and have no effect: {}", ignored.join(", "));
            self.explainer.tell(workloads, Reason::MountOptionsIgnored, &about, &message).await;
        }
    }

    /// Tells the workloads whose Mountpoint Pod has been given up or made again by the steps that were `done`.
    pub(crate) async fn explain_replacements(
        &self,
        view: &View,
        group: &Group,
        done: &[Step],
        workloads: &[Workload],
    ) {
        let left = |pod: &str| {
            done.iter().any(|step| matches!(step, Step::UpdateAttachment { entries, .. } if entries.get(pod) == Some(&None)))
        };
        let remade =
            |pod: &str| done.iter().any(|step| matches!(step, Step::CreatePod { name, .. } if name == pod));
        for (name, listed) in group.attachments.iter().flat_map(|attachment| &attachment.spec.mountpoint_pods)
        {
            let cause = match group.pods.get(name) {
                Some(pod) if is_broken(pod) && left(name) => match &pod.trouble {
                    Some(trouble) => format!("{}: {}", trouble.reason, trouble.message),
                    None => "it was deleted".to_owned(),
                },
                None if view.lost.contains(name) && remade(name) => "it vanished".to_owned(),
                _ => continue,
            };
            let is_affected = |workload: &&Workload| {
                listed.iter().any(|entry| entry.workload_pod_uid == workload.uid)
                    && !group.gone.contains(&workload.uid)
            };
            let affected: Vec<Workload> = workloads.iter().filter(is_affected).cloned().collect();
            let namespace = &self.mountpoint_namespace;
            let message = format!("Mountpoint Pod {namespace}/{name} is replaced ({cause})");
            let about = explain::pod(namespace, name);
            self.explainer.tell(&affected, Reason::MountpointPodReplaced, &about, &message).await;
        }
    }

    /// Says why a Mountpoint Pod does not run, in Kubernetes' own words; `wrong` is why there is none at all.
    pub(crate) async fn explain_pods(&self, group: &str, wrong: Option<(Reason, String)>) {
        let Some(view) = self.world().view(group) else { return };
        let workloads = self.workloads_of(&view);
        let namespace = &self.mountpoint_namespace;
        for attachment in &view.attachments {
            let mut trouble = wrong.clone();
            for (name, listed) in &attachment.spec.mountpoint_pods {
                let Some(found) = view.pods.get(name).and_then(|pod| pod.trouble.as_ref()) else { continue };
                let message = format!(
                    "Mountpoint Pod {namespace}/{name} cannot serve ({}): {}",
                    found.reason, found.message
                );
                let is_listed =
                    |workload: &&Workload| listed.iter().any(|entry| entry.workload_pod_uid == workload.uid);
                let affected: Vec<Workload> = workloads.iter().filter(is_listed).cloned().collect();
                self.explainer
                    .tell(&affected, Reason::of(found), &explain::pod(namespace, name), &message)
                    .await;
                trouble.get_or_insert((Reason::of(found), message));
            }
            let serves = |pod: &MountpointPod| pod.phase == Phase::Running && !is_broken(pod);
            let all_serve =
                attachment.spec.mountpoint_pods.keys().all(|name| view.pods.get(name).is_some_and(serves));
            if trouble.is_none() && !all_serve {
                // On its way: what was said last stays true until it runs.
                continue;
            }
            if let Some(condition) = condition(attachment, trouble, &Time(Timestamp::now())) {
                self.explainer.write(&attachment.name, &condition).await;
            }
        }
    }

    /// Those who wait for the key and those who are listed, as far as they are known.
    pub(crate) fn workloads_of(&self, view: &View) -> Vec<Workload> {
        let world = self.world();
        let listed = view.attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let listed = listed.filter_map(|uid| world.workloads.get(uid)).cloned();
        let all: BTreeMap<String, Workload> = listed
            .chain(view.wanting.iter().cloned())
            .map(|workload| (workload.uid.clone(), workload))
            .collect();
        all.into_values().collect()
    }
}

/// Why a workload gets no Mountpoint Pod, for its owner.
pub(crate) fn explain_failure(
    view: &View,
    invalid: Option<&VolumeError>,
    applied: &Result<(), StepError>,
) -> Option<(Reason, String)> {
    if let Some(error) = invalid {
        return Some((Reason::InvalidVolumeAttributes, error.to_string()));
    }
    match applied {
        Err(StepError::NoVolume { .. }) => {
            let message = format!("PersistentVolume {} is not there any more", view.key.volume_name);
            Some((Reason::PersistentVolumeMissing, message))
        }
        Err(StepError::Refused { message, .. }) => {
            let message = format!("the API server refuses the Mountpoint Pod or its attachment: {message}");
            Some((Reason::MountpointPodRejected, message))
        }
        _ => None,
    }
}
