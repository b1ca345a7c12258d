//! What volumes were asked for with. S3 keeps nothing of it, so that it is known only as long as the program runs; what
//! would really differ, the owner of a bucket, S3 itself refuses.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

/// Enough for retries that come late; the oldest is forgotten first.
const MOST: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub required: i64,
    pub limit: i64,
    pub parameters: BTreeMap<String, String>,
}

#[derive(Default)]
pub struct Memory(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    count: u64,
    volumes: HashMap<String, (u64, Asked)>,
}

impl Memory {
    /// Whether the volume is there and was asked for otherwise.
    pub fn contradicts(&self, volume: &str, asked: &Asked) -> bool {
        self.kept().volumes.get(volume).is_some_and(|(_, before)| before != asked)
    }

    pub fn keep(&self, volume: &str, asked: Asked) {
        let mut kept = self.kept();
        kept.count += 1;
        let count = kept.count;
        kept.volumes.insert(volume.to_owned(), (count, asked));
        if kept.volumes.len() > MOST {
            let oldest = kept.volumes.iter().min_by_key(|(_, (at, _))| *at).map(|(volume, _)| volume.clone());
            oldest.and_then(|volume| kept.volumes.remove(&volume));
        }
    }

    pub fn forget(&self, volume: &str) {
        self.kept().volumes.remove(volume);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("nobody panics while remembering")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_contradicts_and_the_oldest_is_forgotten() {
        let asked = |required| Asked { required, limit: 0, parameters: BTreeMap::new() };
        let memory = Memory::default();
        memory.keep("0", asked(1));
        assert!(memory.contradicts("0", &asked(2)) && !memory.contradicts("0", &asked(1)));
        assert!(!memory.contradicts("1", &asked(2)));
        (1..=MOST).for_each(|number| memory.keep(&number.to_string(), asked(1)));
        assert!(!memory.contradicts("0", &asked(2)) && memory.contradicts("1", &asked(2)));
        memory.forget("1");
        assert!(!memory.contradicts("1", &asked(2)));
    }
}
