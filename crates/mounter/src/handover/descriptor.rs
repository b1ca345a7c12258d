//! The descriptor that is handed over.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, major, minor};

use crate::handover::reply::{Code, Refused};

/// The device number of `/dev/fuse`, the same on every Linux.
pub const FUSE_DEVICE: (u32, u32) = (10, 229);

/// With any other file the mount process would fail with an error that does not name the cause.
pub(super) fn is_fuse(descriptor: impl AsFd) -> Result<(), Refused> {
    let status = fstat(descriptor).map_err(|error| {
        Refused::new(Code::WrongDescriptor, format!("cannot inspect the descriptor: {error}"))
    })?;
    let device = (major(status.st_rdev), minor(status.st_rdev));
    if FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice && device == FUSE_DEVICE {
        Ok(())
    } else {
        Err(Refused::new(Code::WrongDescriptor, "the descriptor is not /dev/fuse"))
    }
}

/// Whether the kernel has ended the connection, by an unmount or because the node aborted it. Asked, not watched: while it is
/// polled, each request of a program to the file system wakes this process, too.
pub fn is_disconnected(descriptor: impl AsFd) -> bool {
    let mut device = [PollFd::new(&descriptor, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut device, Some(&at_once)).is_ok_and(|_| device[0].revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe without a reader answers as the device does without a mount.
    #[test]
    fn a_connection_that_has_ended_is_noticed_without_waiting() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(!is_disconnected(&writer));
        drop(reader);
        assert!(is_disconnected(&writer));
        assert!(is_fuse(&writer).is_err());
    }
}
