//! Everything in the world that concerns one sharing key.

use std::collections::{BTreeMap, BTreeSet};

use contract::names::mountpoint_pod;
use contract::sharing::SharingKey;

use super::detached::Detached;
use super::state::{Demand, ObjectName, World};
use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};

/// All that is known about one sharing key.
#[derive(Clone, Debug)]
pub struct View {
    pub key: SharingKey,
    pub attachments: Vec<Attachment>,
    pub waiting: Vec<Workload>,
    /// Waiting or listed, as far as they are known.
    pub workloads: Vec<Workload>,
    /// Workloads whose attachment was deleted by hand; some may be waiting, too.
    pub detached: Vec<Detached>,
    /// Listed UIDs that no watch knows to be alive, with their last known place.
    pub suspects: BTreeMap<String, Option<ObjectName>>,
    pub pods: BTreeMap<String, MountpointPod>,
    pub volume: Option<S3Volume>,
    /// Another volume of the same handle, if there is one.
    pub other_with_handle: Option<String>,
    pub node_known: bool,
    /// Mountpoint Pods that disappeared.
    pub lost: BTreeSet<String>,
}

impl World {
    /// One of them, should several have it.
    pub fn volume_with_handle(&self, handle: &str) -> Option<&str> {
        self.volumes_by_handle.get(handle)?.first().map(String::as_str)
    }

    pub fn view(&self, group: &str) -> Option<View> {
        let attachments: Vec<Attachment> =
            self.attachments_in(self.attachments_by_group.get(group)).cloned().collect();
        let waiting = self.waiting.get(group).into_iter().flatten();
        let waiting: Vec<Workload> = waiting.filter_map(|uid| self.workloads.get(uid)).cloned().collect();
        let key = attachments.first().map(|attachment| self.key_of(attachment)).or_else(|| {
            let demand = self.demand.get(&waiting.first()?.uid)?;
            demand.iter().find_map(|demand| match demand {
                Demand::Group { name, key } if name == group => Some((**key).clone()),
                _ => None,
            })
        });
        let detached = self.detached(group);
        let key = key.or_else(|| detached.first().map(|it| it.key.clone()))?;
        let listed = attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let suspects = listed
            .filter(|uid| !self.workloads.get(*uid).is_some_and(Workload::is_alive))
            .map(|uid| (uid.to_owned(), self.place_of(uid)))
            .collect();
        let listed = attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let listed = listed.filter_map(|uid| self.workloads.get(uid)).chain(&waiting);
        let workloads: BTreeMap<&str, &Workload> =
            listed.map(|workload| (workload.uid.as_str(), workload)).collect();
        let workloads = workloads.into_values().cloned().collect();
        let named = attachments.iter().flat_map(|attachment| attachment.spec.mountpoint_pods.keys().cloned());
        let named = named.chain(detached.iter().map(|it| it.pod.name.clone()));
        let bases =
            named.chain(waiting.iter().map(|workload| mountpoint_pod(&workload.uid, &key.volume_name)));
        let pods = bases.flat_map(|base| self.pod_and_replacements(&base)).collect();
        let volume = self.volumes.get(&key.volume_name).cloned();
        let handles = self.volumes_by_handle.get(&key.volume_id).into_iter().flatten();
        let other_with_handle = handles.filter(|name| **name != key.volume_name).min().cloned();
        let node_known = self.nodes.contains(&key.node);
        let lost = self.lost.clone();
        Some(View {
            key,
            attachments,
            waiting,
            workloads,
            detached,
            suspects,
            pods,
            volume,
            other_with_handle,
            node_known,
            lost,
        })
    }

    fn place_of(&self, uid: &str) -> Option<ObjectName> {
        let known =
            self.workloads.get(uid).map(|workload| (workload.namespace.clone(), workload.name.clone()));
        known.or_else(|| self.departed.get(uid).cloned())
    }

    /// `base`, `base-2`, …; and, if `base` is such a replacement, its siblings.
    fn pod_and_replacements<'a>(
        &'a self,
        base: &str,
    ) -> impl Iterator<Item = (String, MountpointPod)> + use<'a> {
        let stem: String = base.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
        let start = stem.clone();
        self.pods
            .range(start..)
            .take_while(move |(name, _)| name.starts_with(&stem))
            .map(|(name, pod)| (name.clone(), pod.clone()))
    }
}
