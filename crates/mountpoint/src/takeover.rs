//! Serving a mount that another process may have served before. The kernel begins a conversation once in the life of a mount,
//! and every process has to begin with the same; the requests that a predecessor died with have to be sent again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fuser::{Filesystem, SessionACL};
use rustix::io::{Errno, read, write};

use crate::journal::Begin;
use crate::prepare::Survival;
use crate::readers::{Ended, Reading};

/// Bytes to read the kernel's first request into. The kernel refuses a buffer that its largest request would not fit in.
const FIRST_REQUEST: usize = 1024 * 1024;
/// Bytes before what is special to a request: length, kind, number, inode, user, group, process.
const REQUEST_HEADER: usize = 40;
const INIT: u32 = 26;
/// In the kernel's first request: after the header come major, minor, read-ahead, and flags in two words.
const SECOND_FLAGS: usize = REQUEST_HEADER + 16;
/// Bit 39 of the flags: since Linux 6.9 the kernel sends requests again when asked to.
const HAS_RESEND: u32 = 1 << (39 - 32);
/// Tells the kernel to send again what it has no answer to: an answer to no request, with this code instead of an error.
const RESEND: i32 = 7;

/// Requests are read from now on, by at most so many threads.
pub(crate) fn begin<F: Filesystem + Clone + Send + Sync + 'static>(
    front: F,
    device: OwnedFd,
    users: SessionACL,
    most_threads: usize,
    survival: Survival,
) -> io::Result<Ended> {
    let Survival { journal, begin: Begin { mut init, region }, is_inherited } = survival;
    if is_inherited {
        // Before anything is read: it would be sent again, too.
        write(&device, &resend())?;
    } else {
        init = first_request(&device)?;
    }
    let answers = device.try_clone()?;
    let reading = Reading { front, users, device, init: init.clone(), most_threads };
    reading.start(|answer| {
        if !is_inherited {
            if can_resend(&init) {
                journal.begin(Begin { init, region })?;
            } else {
                tracing::info!("the mount will not survive its process: that needs Linux 6.9 or newer");
            }
        }
        answer_first(&answers, answer, is_inherited)
    })
}

fn resend() -> [u8; 16] {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    message
}

fn first_request(device: impl AsFd) -> io::Result<Vec<u8>> {
    let mut request = vec![0; FIRST_REQUEST];
    let length = read(device, &mut request)?;
    request.truncate(length);
    let is_first = word(&request, 4) == Some(INIT);
    is_first.then_some(request).ok_or_else(|| io::Error::other("the kernel's first request is not INIT"))
}

fn can_resend(init: &[u8]) -> bool {
    word(init, SECOND_FLAGS).is_some_and(|flags| flags & HAS_RESEND != 0)
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
}

/// The kernel has the answer already, unless the predecessor died just before it was sent. Then the kernel sends the request
/// again, takes no answer before it is read, and gets one from the session.
fn answer_first(device: impl AsFd, answer: &[u8], is_inherited: bool) -> io::Result<()> {
    match write(&device, answer) {
        Err(Errno::NOENT) if is_inherited => Ok(()),
        answered => Ok(answered.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_whether_it_sends_again() {
        let mut init = vec![0; 104];
        assert!(!can_resend(&init) && !can_resend(&init[..50]));
        init[SECOND_FLAGS] = 1 << 7;
        assert!(can_resend(&init));
    }

    #[test]
    fn the_notification_is_an_answer_to_no_request() {
        assert_eq!(resend(), [16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
