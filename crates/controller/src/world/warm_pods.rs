//! The policy of warm Mountpoint Pods, and what is remembered about nodes.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::warm::PerNode;

/// A claimed pod is replaced within seconds. If the next volume comes earlier, one pod is not enough.
const BURST: SignedDuration = SignedDuration::from_mins(1);
/// Longer than a claim takes. What could not be claimed is tried again after that: the API server, or a webhook that it asks, may
/// have failed, which changes no pod.
const RESERVED_FOR: SignedDuration = SignedDuration::from_mins(1);

/// The policy of the installation, and what is remembered about nodes.
#[derive(Debug)]
pub struct WarmPods {
    pub per_node: PerNode,
    pub in_cluster: usize,
    /// Shape of the pods that this controller makes.
    pub shape: String,
    /// What each of them takes of its node.
    pub resources: BTreeSet<String>,
    pub(super) by_node: HashMap<String, BTreeSet<String>>,
    /// UIDs of nodes where the driver runs and pods may be added.
    pub(super) open: HashMap<String, String>,
    /// When a node was last seen with an attachment.
    pub(super) used: HashMap<String, Time>,
    /// When a burst of volumes last needed more than there were, when one was last claimed, and when the first one was that is not
    /// replaced yet.
    pub(super) missed: HashMap<String, Time>,
    pub(super) claimed: HashMap<String, Time>,
    pub(super) unreplaced: HashMap<String, Time>,
    /// When there last was no room for a Mountpoint Pod, and those for which there is none now, with their node.
    pub(super) full: HashMap<String, Time>,
    pub(super) unplaced: HashMap<String, String>,
    /// UIDs of workloads that the scheduler finds no room for, and the nodes whose warm pods have not yet been removed for them.
    pub(super) crowded_out: HashSet<String>,
    pub(super) yielding: HashSet<String>,
    /// What a decision under way may claim, and what could not be claimed as it is.
    pub(super) reserved: HashMap<String, Time>,
    /// How many are about to be created.
    pub(super) coming: usize,
}

impl Default for WarmPods {
    fn default() -> Self {
        Self::new(PerNode::Fixed(0), 0, String::new(), BTreeSet::new())
    }
}

impl WarmPods {
    pub fn new(per_node: PerNode, in_cluster: usize, shape: String, resources: BTreeSet<String>) -> Self {
        Self {
            per_node,
            in_cluster,
            shape,
            resources,
            by_node: HashMap::new(),
            open: HashMap::new(),
            used: HashMap::new(),
            missed: HashMap::new(),
            claimed: HashMap::new(),
            unreplaced: HashMap::new(),
            full: HashMap::new(),
            unplaced: HashMap::new(),
            crowded_out: HashSet::new(),
            yielding: HashSet::new(),
            reserved: HashMap::new(),
            coming: 0,
        }
    }

    /// Whether the end of one would leave more of any of these.
    pub(super) fn has_any(&self, lacking: &BTreeSet<&str>) -> bool {
        lacking.iter().any(|resource| self.resources.contains(*resource))
    }

    pub fn is_off(&self) -> bool {
        self.per_node == PerNode::Fixed(0) || self.in_cluster == 0
    }

    /// Several nodes are looked at together, and all of them must respect the limit.
    pub fn expect(&mut self, number: usize) {
        self.coming += number;
    }

    pub fn arrived(&mut self, number: usize) {
        self.coming -= number;
    }

    pub(super) fn is_reserved(&self, pod: &str, now: &Time) -> bool {
        let since = self.reserved.get(pod);
        since.is_some_and(|since| now.0.duration_since(since.0) < RESERVED_FOR)
    }

    pub fn release(&mut self, pod: &str) {
        self.reserved.remove(pod);
    }

    /// A volume took one.
    pub fn hit(&mut self, node: &str, now: &Time) {
        self.claimed.insert(node.to_owned(), now.clone());
        self.unreplaced.entry(node.to_owned()).or_insert_with(|| now.clone());
    }

    /// Others are about to be created in the place of those that were claimed.
    pub fn replaced(&mut self, node: &str) {
        self.unreplaced.remove(node);
    }

    /// A volume wanted one, and none was ready. That is a burst if another one has just been claimed.
    pub fn miss(&mut self, node: &str, now: &Time) {
        let claimed = self.claimed.get(node);
        if claimed.is_some_and(|claimed| now.0.duration_since(claimed.0) < BURST) {
            self.missed.insert(node.to_owned(), now.clone());
        }
    }
}
