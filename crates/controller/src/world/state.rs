//! The objects and their indexes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use contract::sharing::SharingKey;

use super::headroom_index::HeadroomIndex;
use super::warm_pods::WarmPods;
use crate::api::API_TIMEOUT;
use crate::observed::{Attachment, MountpointPod, S3Volume, Workload};

/// Longer than the election takes to notice that a lease was lost (it waits up to 30 s between tries) and than a write
/// that another controller has begun may last.
const STALE_FOR: Duration = Duration::from_secs(45);
const _: () = assert!(30 + API_TIMEOUT.as_secs() < STALE_FOR.as_secs());

/// What a workload waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Group { name: String, key: Box<SharingKey> },
    Role,
}

/// Namespace and name.
pub(super) type ObjectName = (String, String);

#[derive(Debug, Default)]
pub struct World {
    pub workloads: HashMap<String, Workload>,
    pub volumes: HashMap<String, S3Volume>,
    pub attachments: HashMap<String, Attachment>,
    /// Sorted: replacements of a pod are its neighbours.
    pub pods: BTreeMap<String, MountpointPod>,
    pub nodes: HashSet<String>,
    /// From when on no other controller can be writing, as far as we know. `None` while
    /// it is not the leader, and without leader election.
    pub sole_writer_from: Option<Instant>,
    pub warm: WarmPods,
    pub headroom: HeadroomIndex,
    /// Mountpoint Pods that a decision under way will mark, delete or claim.
    pub held: HashSet<String>,
    /// Nodes on which a decision under way moves a mount to this version.
    pub upgrading: HashSet<String>,
    /// Roles of workloads whose service account was looked up.
    pub(super) roles: HashMap<String, String>,
    /// Mountpoint Pods that disappeared while an attachment names them.
    pub(super) lost: BTreeSet<String>,
    /// Namespace and name of workloads that have left, as long as an attachment lists them: the live read that confirms
    /// that they are gone needs them.
    pub(super) departed: HashMap<String, ObjectName>,

    pub(super) workloads_by_claim: HashMap<ObjectName, BTreeSet<String>>,
    pub(super) volume_by_claim: HashMap<ObjectName, String>,
    pub(super) volumes_by_handle: HashMap<String, BTreeSet<String>>,
    pub(super) attachments_by_workload: HashMap<String, BTreeSet<String>>,
    pub(super) attachments_by_pod: HashMap<String, BTreeSet<String>>,
    /// Keyed by the attachment that each pod was created for, whether that exists or not.
    pub(super) pods_by_attachment: HashMap<String, BTreeSet<String>>,
    pub(super) attachments_by_node: HashMap<String, BTreeSet<String>>,
    pub(super) attachments_by_volume: HashMap<String, BTreeSet<String>>,
    pub(super) attachments_by_group: HashMap<String, BTreeSet<String>>,
    pub(super) group_of_attachment: HashMap<String, String>,
    pub(super) waiting: HashMap<String, BTreeSet<String>>,
    pub(super) demand: HashMap<String, Vec<Demand>>,
}

impl World {
    /// After losing contact with the API server: another controller may hold the lease, and the caches may be older than they
    /// were.
    pub fn mark_stale(&mut self) {
        self.sole_writer_from = self.sole_writer_from.map(|from| from.max(Instant::now() + STALE_FOR));
    }

    /// Those that an index names.
    pub(super) fn attachments_in<'a>(
        &'a self,
        names: Option<&'a BTreeSet<String>>,
    ) -> impl Iterator<Item = &'a Attachment> {
        names.into_iter().flatten().filter_map(move |name| self.attachments.get(name))
    }

    pub(super) fn attachments_on(&self, node: &str) -> impl Iterator<Item = &Attachment> {
        self.attachments_in(self.attachments_by_node.get(node))
    }

    /// Whether the caches can be trusted to show every write but the last few.
    pub fn is_sole_writer(&self) -> bool {
        self.sole_writer_from.is_some_and(|from| Instant::now() >= from)
    }
}

pub(super) fn remove_from<K, Q>(index: &mut HashMap<K, BTreeSet<String>>, key: &Q, member: &str)
where
    K: std::borrow::Borrow<Q> + Eq + std::hash::Hash,
    Q: Eq + std::hash::Hash + ?Sized,
{
    if let Some(members) = index.get_mut(key) {
        members.remove(member);
        if members.is_empty() {
            index.remove(key);
        }
    }
}
