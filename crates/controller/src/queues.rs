//! The queues of keys to work on.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::key::Key;

/// Where keys go: to the dispatchers of the leader, and nowhere in other replicas.
pub type Sink = Arc<Mutex<Option<Queues>>>;

/// An S3 server that does not respond must not delay mounts, nor volumes with many objects to delete new claims, nor workloads that
/// ask for headroom, which anyone who may create pods can make many of, anything else.
#[derive(Debug)]
pub struct Queues {
    pub mounts: mpsc::UnboundedSender<Key>,
    pub provisioning: mpsc::UnboundedSender<Key>,
    pub deletions: mpsc::UnboundedSender<Key>,
    pub headroom: mpsc::UnboundedSender<Key>,
}

impl Queues {
    fn of(&self, key: &Key) -> &mpsc::UnboundedSender<Key> {
        match key {
            Key::Group(_) | Key::Pod(_) | Key::WarmPods(_) | Key::Role(_) => &self.mounts,
            Key::Claim(..) => &self.provisioning,
            Key::Volume(_) => &self.deletions,
            Key::Headroom(_) => &self.headroom,
        }
    }
}

pub fn send(sink: &Sink, keys: Vec<Key>) {
    if let Some(queues) = sink.lock().as_ref() {
        for key in keys {
            // A dispatcher that has just ended needs no keys.
            let _ = queues.of(&key).send(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_delay_others_has_a_queue_of_its_own() {
        let (mounts, mut to_mount) = mpsc::unbounded_channel();
        let (provisioning, mut to_provision) = mpsc::unbounded_channel();
        let (deletions, mut to_delete) = mpsc::unbounded_channel();
        let (headroom, mut to_reserve) = mpsc::unbounded_channel();
        let queues = Queues { mounts, provisioning, deletions, headroom };
        let sink: Sink = Arc::new(Mutex::new(Some(queues)));
        let name = || "a".to_owned();
        let (claim, volume) = (Key::Claim(name(), name()), Key::Volume(name()));
        send(&sink, vec![claim.clone(), Key::Group(name()), volume.clone(), Key::Pod(name())]);
        send(&sink, vec![Key::Headroom(name())]);
        let all = |queue: &mut mpsc::UnboundedReceiver<Key>| {
            std::iter::from_fn(|| queue.try_recv().ok()).collect::<Vec<_>>()
        };
        assert_eq!(all(&mut to_mount), [Key::Group(name()), Key::Pod(name())]);
        assert_eq!(all(&mut to_provision), [claim]);
        assert_eq!(all(&mut to_delete), [volume]);
        assert_eq!(all(&mut to_reserve), [Key::Headroom(name())]);
    }
}
