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
        self.0.lock().set_claim(claim)
    }

    /// After a write of ours, unless the claim was deleted meanwhile.
    pub fn update_claim(&self, claim: Claim) {
        let mut cached = self.0.lock();
        let known = cached.claims.get(&(claim.namespace.clone(), claim.name.clone()));
        if known.is_some_and(|known| known.uid == claim.uid) {
            cached.set_claim(claim);
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

impl Cached {
    fn set_claim(&mut self, claim: Claim) -> Option<Key> {
        let key = (claim.namespace.clone(), claim.name.clone());
        // The watch may still report what was before our own last write.
        let is_old =
            |known: &Claim| known.uid == claim.uid && known.resource_version >= claim.resource_version;
        if self.claims.get(&key).is_some_and(is_old) {
            return None;
        }
        let item = work_of(&claim);
        self.claims.insert(key, claim);
        item
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::claims::claim::FINALIZER;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The watch reports the end of a claim at any moment of our own writes.
    #[test]
    fn a_claim_that_is_deleted_during_a_write_does_not_come_back() {
        let metadata = serde_json::json!({
            "namespace": "ns", "name": "claim", "uid": "1", "resourceVersion": "1", "finalizers": [FINALIZER],
        });
        let claim = serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": {}})).unwrap();
        let claim = Claim::of(&claim).unwrap();
        for _ in 0..200 {
            let (cache, removed) = (ProvisionCache::default(), AtomicBool::new(false));
            cache.set_claim(claim.clone());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for resource_version in (2..).take_while(|_| !removed.load(Ordering::Relaxed)) {
                        let mut written = claim.clone();
                        written.resource_version = resource_version;
                        cache.update_claim(written);
                    }
                });
                while cache.claim("ns", "claim").is_some_and(|claim| claim.resource_version == 1) {
                    std::thread::yield_now();
                }
                cache.remove_claim("ns", "claim");
                removed.store(true, Ordering::Relaxed);
            });
            assert!(cache.claims().is_empty());
        }
    }
}
