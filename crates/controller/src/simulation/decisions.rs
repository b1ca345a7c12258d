//! What a controller decides with: what it remembers, and what it reads live.

use std::collections::BTreeSet;

use contract::authentication::AuthenticationSource;
use contract::sharing::SharingKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::api_server::{Server, Workload};
use crate::group::{Group, retire};
use crate::observed::{Attachment, MountpointPod, Phase};
use crate::step::Step;
use crate::warm::{PerNode, WarmNode};
use crate::world::served_by;

impl Server {
    /// The group as remembered by `self`, with what is read live from `now`.
    pub(super) fn group(&self, key: &SharingKey, now: &Self) -> Group {
        let node = key.node.clone();
        let attachments: Vec<Attachment> = self
            .attachments
            .values()
            .filter(|attachment| Self::key_of(&attachment.spec) == *key)
            .cloned()
            .collect();
        let listed = attachments.iter().flat_map(|attachment| attachment.spec.workload_uids());
        let dead = |uid: &&str| !now.workloads.get(*uid).is_some_and(|workload| workload.alive);
        let suspect = |uid: &&str| !self.workloads.get(*uid).is_some_and(|workload| workload.alive);
        let gone = listed.filter(suspect).filter(dead).map(str::to_owned).collect();
        let waiting = self.workloads.iter().filter(|(uid, workload)| {
            let waits = workload.alive && workload.waits && self.key_for(workload) == *key;
            // Read live as well while another controller may be writing: two of them, of which one has not yet seen
            // the volume edited, would open two attachments of different names for one workload; and one that has
            // not yet seen a workload leave would attach it again, to a pod that is being unmounted.
            let still = now.workloads.get(*uid).is_some_and(|workload| workload.alive && workload.waits);
            waits && self.lists(uid) == 0 && now.lists(uid) == 0 && still
        });
        let detached = self.detached(key).into_iter().filter(|(uid, pod)| {
            let found = now.pods.get(pod).filter(|found| self.pods[pod].uid == found.uid);
            found.is_some_and(|found| !found.is_ending())
                && now.workloads.contains_key(uid)
                && now.lists(uid) == 0
        });
        let detached: Vec<(String, String)> = detached.collect();
        let waiting = waiting.filter(|(uid, _)| !detached.iter().any(|(back, _)| back == *uid));
        let vanished = |server: &Self| server.vanished.iter().any(|number| node == format!("node-{number}"));
        Group {
            key: key.clone(),
            now: Time(Timestamp::from_second(i64::try_from(now.version).unwrap()).unwrap()),
            driver_version: self.driver.to_string(),
            attachments,
            waiting: waiting.map(|(uid, _)| uid.clone()).collect(),
            with_headroom: BTreeSet::new(),
            detached,
            gone,
            ending: BTreeSet::new(),
            pods: self.pods.clone(),
            warm: self.pods.values().find(|pod| self.is_claimable(pod, &node)).cloned(),
            early_mount: None,
            authentication: Some(AuthenticationSource::Driver),
            node_gone: vanished(self) && vanished(now),
            upgrades: true,
        }
    }

    fn key_for(&self, workload: &Workload) -> SharingKey {
        Self::key(workload.node, workload.volume, self.edition)
    }

    /// What is done about the warm pods of a node, of which one is wanted while the node is in use.
    pub(super) fn warm_pods(&self, node: usize, now: &Self) -> Vec<Step> {
        let name = format!("node-{node}");
        let is_used = self.attachments.values().any(|attachment| attachment.spec.node_name == name);
        let time = Time(Timestamp::from_second(i64::try_from(now.version).unwrap()).unwrap());
        let is_on = |pod: &&MountpointPod| pod.warm.as_ref().is_some_and(|warm| warm.node == name);
        let warm_node = WarmNode {
            node: name.clone(),
            now: time.clone(),
            shape: self.shape(),
            per_node: PerNode::Auto,
            quota_left: 1,
            beyond: 0,
            open: (!self.vanished.contains(&node)).then(|| "uid".to_owned()),
            node_gone: self.vanished.contains(&node) && now.vanished.contains(&node),
            used: is_used.then_some(time),
            missed: None,
            claimed: None,
            starting: None,
            full: None,
            warm: self.pods.values().filter(is_on).cloned().collect(),
        };
        warm_node.decide(|| format!("warm-{}", now.version))
    }

    /// Whose attachment was deleted by hand, and the pod that serves them.
    pub(super) fn detached(&self, key: &SharingKey) -> Vec<(String, String)> {
        let is_of_key = |pod: &&MountpointPod| pod.attachment.as_ref() == Some(&key.attachment_name());
        let pods =
            self.pods.values().filter(is_of_key).filter(|pod| !self.names(&pod.name) && !pod.is_ending());
        let pods: Vec<&MountpointPod> = pods.collect();
        let unlisted = self.workloads.iter().filter(|(uid, workload)| {
            workload.alive && self.key_for(workload) == *key && self.lists(uid) == 0
        });
        let detached = unlisted.filter_map(|(uid, workload)| {
            let pod = served_by(uid, !workload.waits, None, &pods)?;
            Some((uid.clone(), pod.name.clone()))
        });
        detached.collect()
    }

    /// What is done with pods that no attachment names, as cached in `self` and confirmed by `now`.
    pub(super) fn orphans(&self, now: &Self) -> Vec<Step> {
        let orphans = self.pods.values().filter(|pod| pod.warm.is_none());
        let orphans = orphans.filter(|pod| !self.names(&pod.name) && !now.names(&pod.name));
        let detached: Vec<_> = self.keys().iter().flat_map(|key| self.detached(key)).collect();
        let serves = |pod: &MountpointPod| detached.iter().any(|(_, name)| *name == pod.name);
        orphans.filter(|pod| !serves(pod)).filter_map(retire).collect()
    }

    fn is_claimable(&self, pod: &MountpointPod, node: &str) -> bool {
        let fits = pod.warm.as_ref().is_some_and(|warm| warm.node == node && warm.shape == self.shape());
        fits && pod.phase == Phase::Running && !pod.is_ending()
    }
}
