//! The claims of this driver and the volumes that need something, as the watches report them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::claim::{Claim, Need};
use crate::key::Key;
use crate::provision::reclaim::volume::{self as released, need};
use crate::slim::SlimVolume;

/// Shared by the watches, which fill it, and the provisioner.
#[derive(Clone, Debug, Default)]
pub struct ProvisionCache(Arc<Mutex<Cached>>);

#[derive(Debug, Default)]
struct Cached {
    /// Keyed by (namespace, name), including bound ones: a watch event that is older than our own write must be recognised.
    claims: HashMap<(String, String), Claim>,
    volumes: BTreeSet<String>,
}

impl ProvisionCache {
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Claim> {
        self.0.lock().claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub fn set_claim(&self, claim: Claim) -> Option<Key> {
        let key = (claim.namespace.clone(), claim.name.clone());
        let mut cached = self.0.lock();
        let known = cached.claims.get(&key);
        // The watch may still report what was before our own last write.
        if known
            .is_some_and(|known| known.uid == claim.uid && known.resource_version >= claim.resource_version)
        {
            return None;
        }
        let item = work_of(&claim);
        cached.claims.insert(key, claim);
        item
    }

    /// After a write of ours, unless the claim was deleted meanwhile.
    pub fn update_claim(&self, claim: Claim) {
        let known = self.claim(&claim.namespace, &claim.name);
        if known.is_some_and(|known| known.uid == claim.uid) {
            self.set_claim(claim);
        }
    }

    pub fn remove_claim(&self, namespace: &str, name: &str) {
        self.0.lock().claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn claims(&self) -> Vec<(String, String)> {
        self.0.lock().claims.keys().cloned().collect()
    }

    pub fn set_volume(&self, volume: &SlimVolume) -> Option<Key> {
        let name = volume.name_any();
        if need(volume) == released::Need::Nothing {
            self.0.lock().volumes.remove(&name);
            return None;
        }
        self.0.lock().volumes.insert(name.clone());
        Some(Key::Volume(name))
    }

    pub fn remove_volume(&self, name: &str) {
        self.0.lock().volumes.remove(name);
    }

    /// Everything that needs something.
    pub fn work(&self) -> Vec<Key> {
        let cached = self.0.lock();
        let volumes = cached.volumes.iter().cloned().map(Key::Volume);
        cached.claims.values().filter_map(work_of).chain(volumes).collect()
    }
}

fn work_of(claim: &Claim) -> Option<Key> {
    match claim.need() {
        Need::Nothing => None,
        Need::Refuse(_) | Need::Provision | Need::CleanUp => {
            Some(Key::Claim(claim.namespace.clone(), claim.name.clone()))
        }
    }
}
