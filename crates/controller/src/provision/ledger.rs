//! The claims and volumes that may need something, as the watches tell.

use std::collections::{BTreeSet, HashMap};

use kube::ResourceExt as _;

use super::claim::{Claim, Need};
use super::reclaim;
use crate::slim::SlimVolume;
use crate::world::Key;

#[derive(Debug, Default)]
pub struct Ledger {
    /// Of ours, by (namespace, name); those that are done, too: what our own writes made of a claim must be known when
    /// the watch tells of it later.
    claims: HashMap<(String, String), Claim>,
    /// Names of volumes that need something.
    volumes: BTreeSet<String>,
}

impl Ledger {
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Claim> {
        self.claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub fn set_claim(&mut self, claim: Claim) -> Vec<Key> {
        let place = (claim.namespace.clone(), claim.name.clone());
        let known = self.claims.get(&place);
        // A watch may still be telling what was before our own last write.
        if known
            .is_some_and(|known| known.uid == claim.uid && known.resource_version >= claim.resource_version)
        {
            return Vec::new();
        }
        let keys = key(&claim);
        self.claims.insert(place, claim);
        keys
    }

    /// What a write of ours made of a claim, if it is still the one that is known: it may be gone since, and another of
    /// its name may have come.
    pub fn note_written(&mut self, claim: Claim) {
        let place = (claim.namespace.clone(), claim.name.clone());
        if self.claims.get(&place).is_some_and(|known| known.uid == claim.uid) {
            self.set_claim(claim);
        }
    }

    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        self.claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn claims(&self) -> impl Iterator<Item = &(String, String)> {
        self.claims.keys()
    }

    pub fn set_volume(&mut self, volume: &SlimVolume) -> Vec<Key> {
        let name = volume.name_any();
        if reclaim::need(volume) == reclaim::Need::Nothing {
            self.volumes.remove(&name);
            return Vec::new();
        }
        self.volumes.insert(name.clone());
        vec![Key::Volume(name)]
    }

    pub fn remove_volume(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// Everything that needs something.
    pub fn keys(&self) -> Vec<Key> {
        let claims = self.claims.values().flat_map(key);
        claims.chain(self.volumes.iter().cloned().map(Key::Volume)).collect()
    }
}

fn key(claim: &Claim) -> Vec<Key> {
    match claim.need() {
        Need::Nothing => Vec::new(),
        Need::Refuse(_) | Need::Provision | Need::Settle => {
            vec![Key::Claim(claim.namespace.clone(), claim.name.clone())]
        }
    }
}
