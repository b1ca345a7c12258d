//! The queues of keys to work on.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::key::Key;

/// Where keys go: to the dispatchers of the leader, and nowhere in other replicas.
pub type Sink = Arc<Mutex<Option<Queues>>>;

/// Two of them: an S3 server that does not respond must not delay mounts.
#[derive(Debug)]
pub struct Queues {
    pub mounts: mpsc::UnboundedSender<Key>,
    pub provisioning: mpsc::UnboundedSender<Key>,
}

pub fn send(sink: &Sink, keys: Vec<Key>) {
    if let Some(queues) = sink.lock().as_ref() {
        for key in keys {
            let queue = if key.is_of_provisioning() { &queues.provisioning } else { &queues.mounts };
            // A dispatcher that has just ended needs no keys.
            let _ = queue.send(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_s3_has_a_queue_of_its_own() {
        let ((mounts, mut to_mount), (provisioning, mut to_provision)) =
            (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let sink: Sink = Arc::new(Mutex::new(Some(Queues { mounts, provisioning })));
        let name = || "a".to_owned();
        let (claim, volume) = (Key::Claim(name(), name()), Key::Volume(name()));
        send(&sink, vec![claim.clone(), Key::Group(name()), volume.clone(), Key::Pod(name())]);
        let all = |queue: &mut mpsc::UnboundedReceiver<Key>| {
            std::iter::from_fn(|| queue.try_recv().ok()).collect::<Vec<_>>()
        };
        assert_eq!(all(&mut to_mount), [Key::Group(name()), Key::Pod(name())]);
        assert_eq!(all(&mut to_provision), [claim, volume]);
    }
}
