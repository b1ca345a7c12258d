//! What a single thread waits for: descriptors that become readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// Readable when a file appears in the folder.
pub(crate) fn watch(folder: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, folder, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
    Ok(changes)
}

/// Until one of them is readable, or a signal or the deadline comes: the caller looks at everything anyway.
pub(crate) fn wait(descriptors: Vec<BorrowedFd<'_>>, until: Option<Instant>) {
    let readable = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
    let mut all: Vec<_> = descriptors.into_iter().map(readable).collect();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let _ = poll(&mut all, left.as_ref());
}

/// Reads everything that is there; whether there was anything.
pub(crate) fn drain(descriptor: impl AsFd) -> bool {
    let mut buffer = [0; 4096];
    let mut any = false;
    while rustix::io::read(&descriptor, &mut buffer).is_ok_and(|read| read > 0) {
        any = true;
    }
    any
}
