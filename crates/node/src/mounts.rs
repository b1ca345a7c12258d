//! What is mounted on this node, read anew only when the kernel says that it has changed: kubelet refreshes every volume
//! again and again, and a busy node has thousands of mounts.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::mount_table::MountTable;

const FILE: &str = "/proc/self/mountinfo";

/// The table of the mount namespace in which it was first asked for.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Arc<Mutex<Option<Last>>>);

#[derive(Debug)]
struct Last {
    file: File,
    table: Arc<MountTable>,
}

impl Mounts {
    pub fn table(&self) -> io::Result<Arc<MountTable>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out: if reading fails, the next one begins afresh.
        let last = match held.take() {
            Some(last) if !changed(&last.file)? => last,
            // What changes from here on is told the next time.
            Some(last) => Last::read(last.file)?,
            None => Last::read(File::open(FILE)?)?,
        };
        Ok(Arc::clone(&held.insert(last).table))
    }
}

impl Last {
    fn read(mut file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(Self { table: Arc::new(MountTable::parse(&bytes)), file })
    }
}

/// Whether anything was mounted, unmounted or remounted since the file was opened or this was last asked of it.
fn changed(file: &File) -> io::Result<bool> {
    let mut asked = [PollFd::new(file, PollFlags::PRI)];
    retry_on_intr(|| poll(&mut asked, Some(&Timespec::default())))?;
    Ok(asked[0].revents().contains(PollFlags::PRI))
}

/// Tells of the first change after its making.
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
    fn what_has_not_changed_is_not_read_again() {
        let mounts = Mounts::default();
        // The machine may be mounting something just now, but not all the time.
        let unchanged = (0..1000).any(|_| {
            let (first, second) = (mounts.table().unwrap(), mounts.clone().table().unwrap());
            assert!(!first.0.is_empty());
            Arc::ptr_eq(&first, &second)
        });
        assert!(unchanged);
    }
}
