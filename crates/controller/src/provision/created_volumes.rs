//! The memory of the CSI service: which volumes it has created, and with what.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

/// Enough for late retries; the oldest is forgotten first.
const MAX_CREATED: usize = 1000;

/// What a volume was created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedWith {
    pub(super) required: i64,
    pub(super) limit: i64,
    pub(super) parameters: BTreeMap<String, String>,
}

/// The volumes that this process has created: a repeated request must have the same parameters. S3 stores none of them, so
/// that a restart forgets them; the owner of a bucket, which would matter, S3 checks itself.
#[derive(Default)]
pub(super) struct CreatedVolumes(Mutex<Created>);

#[derive(Default)]
struct Created {
    count: u64,
    volumes: HashMap<String, (u64, CreatedWith)>,
}

impl CreatedVolumes {
    /// Whether the volume was created with other parameters.
    pub(super) fn differs(&self, volume: &str, parameters: &CreatedWith) -> bool {
        self.0.lock().volumes.get(volume).is_some_and(|(_, before)| before != parameters)
    }

    pub(super) fn insert(&self, volume: &str, parameters: CreatedWith) {
        let mut created = self.0.lock();
        created.count += 1;
        let count = created.count;
        created.volumes.insert(volume.to_owned(), (count, parameters));
        if created.volumes.len() > MAX_CREATED {
            let oldest =
                created.volumes.iter().min_by_key(|(_, (at, _))| *at).map(|(volume, _)| volume.clone());
            oldest.and_then(|volume| created.volumes.remove(&volume));
        }
    }

    pub(super) fn remove(&self, volume: &str) {
        self.0.lock().volumes.remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_parameters_differ_and_the_oldest_volume_is_forgotten() {
        let parameters = |required| CreatedWith { required, limit: 0, parameters: BTreeMap::new() };
        let created = CreatedVolumes::default();
        created.insert("0", parameters(1));
        assert!(created.differs("0", &parameters(2)) && !created.differs("0", &parameters(1)));
        assert!(!created.differs("1", &parameters(2)));
        (1..=MAX_CREATED).for_each(|number| created.insert(&number.to_string(), parameters(1)));
        assert!(!created.differs("0", &parameters(2)) && created.differs("1", &parameters(2)));
        created.remove("1");
        assert!(!created.differs("1", &parameters(2)));
    }
}
