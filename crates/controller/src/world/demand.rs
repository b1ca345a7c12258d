//! Which sharing keys a workload waits for.

use contract::sharing::{Identity, SharingKey};
use contract::volume::{AuthenticationSource, attribute};

use super::state::{Demand, ObjectName, World, remove_from};
use crate::key::Key;
use crate::observed::{S3Volume, Workload};

impl World {
    pub(super) fn recompute_demand_of_claim(&mut self, claim: &ObjectName) -> Vec<Key> {
        let workloads = self.workloads_by_claim.get(claim).cloned().unwrap_or_default();
        workloads.iter().flat_map(|uid| self.recompute_demand(uid)).collect()
    }

    /// Which keys a workload waits for; returns those that are new.
    pub(super) fn recompute_demand(&mut self, uid: &str) -> Vec<Key> {
        let now = self.demand_of(uid);
        let before = self.demand.remove(uid).unwrap_or_default();
        for demand in &before {
            if let Demand::Group { name, .. } = demand {
                remove_from(&mut self.waiting, name, uid);
            }
        }
        let changed = now.iter().filter(|demand| !before.contains(demand)).map(|demand| match demand {
            Demand::Group { name, .. } => Key::Group(name.clone()),
            Demand::Role => Key::Role(uid.to_owned()),
        });
        let keys = changed.collect();
        for demand in &now {
            if let Demand::Group { name, .. } = demand {
                self.waiting.entry(name.clone()).or_default().insert(uid.to_owned());
            }
        }
        if !now.is_empty() {
            self.demand.insert(uid.to_owned(), now);
        }
        keys
    }

    fn demand_of(&self, uid: &str) -> Vec<Demand> {
        let Some(workload) = self.workloads.get(uid).filter(|workload| workload.awaits_volumes()) else {
            return Vec::new();
        };
        let claims = workload.claims.iter().map(|claim| (workload.namespace.clone(), claim.clone()));
        let volumes = claims.filter_map(|claim| self.volumes.get(self.volume_by_claim.get(&claim)?));
        // By UID first: a volume that was edited since must not attach its workload a second time.
        let unattached = volumes.filter(|volume| !self.is_attached(uid, &volume.name));
        unattached.map(|volume| self.demand_for(workload, volume)).collect()
    }

    pub(super) fn is_attached(&self, uid: &str, volume: &str) -> bool {
        let mut attachments = self.attachments_in(self.attachments_by_workload.get(uid));
        attachments.any(|attachment| attachment.spec.persistent_volume_name == volume)
    }

    pub(super) fn demand_for(&self, workload: &Workload, volume: &S3Volume) -> Demand {
        let (namespace, account) = (workload.namespace.clone(), workload.service_account.clone());
        let identity = match source_of(volume) {
            AuthenticationSource::Driver => Identity::Driver,
            AuthenticationSource::Secret => Identity::Secret,
            AuthenticationSource::Pod => match self.roles.get(&workload.uid) {
                Some(role) => Identity::Pod { namespace, service_account: account, role: role.clone() },
                None => return Demand::Role,
            },
        };
        let key = SharingKey {
            node: workload.node.clone(),
            volume_name: volume.name.clone(),
            volume_id: volume.handle.clone(),
            mount_options: volume.mount_options.join(","),
            fs_group: workload.fs_group.clone(),
            identity,
        };
        Demand::Group { name: key.attachment_name(), key: Box::new(key) }
    }
}

/// The source of credentials of a volume that may be invalid otherwise, which the reconciler reports.
pub(super) fn source_of(volume: &S3Volume) -> AuthenticationSource {
    let text = volume.attributes.get(attribute::AUTHENTICATION_SOURCE).map_or("", String::as_str);
    AuthenticationSource::of_volume(text, volume.secret).unwrap_or_default()
}
