//! The node's mount table, parsed again only after the kernel reported a change: the kubelet republishes every volume
//! periodically, and a busy node has thousands of mounts.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::mount_table::MountTable;

const FILE: &str = "/proc/self/mountinfo";

/// Stays in the mount namespace of its first read.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Arc<Mutex<Option<Cached>>>);

#[derive(Debug)]
struct Cached {
    file: File,
    table: Arc<MountTable>,
}

impl Mounts {
    pub fn table(&self) -> io::Result<Arc<MountTable>> {
        let mut slot = self.0.lock();
        // Taken out, so that the next call starts over if reading fails.
        let cached = match slot.take() {
            Some(cached) if !changed(&cached.file)? => cached,
            // `changed` comes first: a mount made while this reads is reported to the next call.
            Some(cached) => Cached::read(cached.file)?,
            None => Cached::read(File::open(FILE)?)?,
        };
        Ok(Arc::clone(&slot.insert(cached).table))
    }
}

impl Cached {
    fn read(mut file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(Self { table: Arc::new(MountTable::parse(&bytes)), file })
    }
}

/// Whether the mounts changed since the file was opened or last polled.
fn changed(file: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::PRI)];
    retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))?;
    Ok(polled[0].revents().contains(PollFlags::PRI))
}

/// Reports the first change of the mounts after its creation.
#[derive(Debug)]
pub struct NextChange(AsyncFd<File>);

impl NextChange {
    pub fn watch() -> io::Result<Self> {
        #[expect(deprecated, reason = "unsound only for types that do not own their descriptor; a file does")]
        let file = AsyncFd::with_interest(File::open(FILE)?, Interest::PRIORITY)?;
        Ok(Self(file))
    }

    pub async fn happened(&self) {
        let _ = self.0.ready(Interest::PRIORITY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_table_is_not_read_again() {
        let mounts = Mounts::default();
        // The machine may mount something between the two reads, but not every time.
        let unchanged = (0..1000).any(|_| {
            let (first, second) = (mounts.table().unwrap(), mounts.clone().table().unwrap());
            assert!(!first.0.is_empty());
            Arc::ptr_eq(&first, &second)
        });
        assert!(unchanged);
    }
}
