//! Which sharing keys a workload waits for.

use contract::sharing::{Identity, SharingKey};
use contract::volume::{AuthenticationSource, attribute};

use super::{Claim, Key, World, remove_from};
use crate::observed::{S3Volume, Workload};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Group { name: String, key: Box<SharingKey> },
    Role,
}

impl World {
    pub(super) fn rethink_claim(&mut self, claim: &Claim) -> Vec<Key> {
        let workloads = self.workloads_by_claim.get(claim).cloned().unwrap_or_default();
        workloads.iter().flat_map(|uid| self.rethink(uid)).collect()
    }

    /// Works out anew which keys a workload waits for; the answer is those that are new.
    pub(super) fn rethink(&mut self, uid: &str) -> Vec<Key> {
        let now = self.wants_of(uid);
        let before = self.wants.remove(uid).unwrap_or_default();
        for want in &before {
            if let Want::Group { name, .. } = want {
                remove_from(&mut self.wanting, name, uid);
            }
        }
        let changed = now.iter().filter(|want| !before.contains(want)).map(|want| match want {
            Want::Group { name, .. } => Key::Group(name.clone()),
            Want::Role => Key::Role(uid.to_owned()),
        });
        let keys = changed.collect();
        for want in &now {
            if let Want::Group { name, .. } = want {
                self.wanting.entry(name.clone()).or_default().insert(uid.to_owned());
            }
        }
        if !now.is_empty() {
            self.wants.insert(uid.to_owned(), now);
        }
        keys
    }

    fn wants_of(&self, uid: &str) -> Vec<Want> {
        let Some(workload) = self.workloads.get(uid).filter(|workload| workload.awaits_volumes()) else {
            return Vec::new();
        };
        let claims = workload.claims.iter().map(|claim| (workload.namespace.clone(), claim.clone()));
        let volumes = claims.filter_map(|claim| self.volumes.get(self.volume_by_claim.get(&claim)?));
        // By UID first: a volume that was edited since must not attach its workload a second time.
        let unattached = volumes.filter(|volume| !self.is_attached(uid, &volume.name));
        unattached.map(|volume| self.want(workload, volume)).collect()
    }

    pub(super) fn is_attached(&self, uid: &str, volume: &str) -> bool {
        let attachments = self.attachments_by_workload.get(uid).into_iter().flatten();
        let mut attachments = attachments.filter_map(|name| self.attachments.get(name));
        attachments.any(|attachment| attachment.spec.persistent_volume_name == volume)
    }

    pub(super) fn want(&self, workload: &Workload, volume: &S3Volume) -> Want {
        let (namespace, account) = (workload.namespace.clone(), workload.service_account.clone());
        let identity = match source_of(volume) {
            AuthenticationSource::Driver => Identity::Driver,
            AuthenticationSource::Secret => Identity::Secret,
            AuthenticationSource::Pod => match self.roles.get(&workload.uid) {
                Some(role) => Identity::Pod { namespace, service_account: account, role: role.clone() },
                None => return Want::Role,
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
        Want::Group { name: key.attachment_name(), key: Box::new(key) }
    }
}

/// What the volume says; what it says wrongly is refused where the volume is looked at whole.
pub(super) fn source_of(volume: &S3Volume) -> AuthenticationSource {
    let text = volume.attributes.get(attribute::AUTHENTICATION_SOURCE).map_or("", String::as_str);
    AuthenticationSource::asked(text, volume.secret).unwrap_or_default()
}
