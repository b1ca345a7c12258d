//! Serving a mount that another process may have served before. The kernel begins a conversation once in the life of a mount,
//! and every process has to begin with the same; the requests that a predecessor died with have to be sent again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use fuser::{Filesystem, Request, Session, SessionACL};
use rustix::io::{Errno, dup2, fcntl_dupfd_cloexec, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::stdio::dup2_stdin;

use crate::journal::Begin;
use crate::prepare::Survival;

/// Bytes to read the kernel's first request into. The kernel refuses a buffer that its largest request would not fit in.
const FIRST_REQUEST: usize = 1024 * 1024;
/// Bytes for the session's answer to that request, which is far shorter.
const LONGEST_ANSWER: usize = 4096;
/// Bytes before what is special to a request: length, kind, number, inode, user, group, process.
const REQUEST_HEADER: usize = 40;
const INIT: u32 = 26;
/// In the kernel's first request: after the header come major, minor, read-ahead, and flags in two words.
const SECOND_FLAGS: usize = REQUEST_HEADER + 16;
/// Bit 39 of the flags: since Linux 6.9 the kernel sends requests again when asked to.
const HAS_RESEND: u32 = 1 << (39 - 32);
/// Tells the kernel to send again what it has no answer to: an answer to no request, with this code instead of an error.
const RESEND: i32 = 7;

/// The session has spoken with the kernel, and reads requests as soon as it runs.
pub(crate) fn begin<F: Filesystem>(
    front: F,
    mut descriptor: OwnedFd,
    users: SessionACL,
    survival: Survival,
) -> io::Result<Session<F>> {
    let Survival { journal, begin: Begin { mut init, region }, is_inherited } = survival;
    if descriptor.as_raw_fd() != rustix::stdio::raw_stdin() {
        return Err(io::Error::other("a mount survives only if its descriptor is the standard input"));
    }
    let device = fcntl_dupfd_cloexec(&descriptor, 0)?;
    if is_inherited {
        // Before anything is read: it would be sent again, too.
        write(&device, &resend())?;
    } else {
        init = first_request(&device)?;
    }
    // The session gets the kernel's first request from a socket, because the kernel may have sent it to a predecessor.
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    dup2(&there, &mut descriptor)?;
    let session = Session::from_fd(front, descriptor, users);
    let answer = converse(&session, &here, &init)?;
    if !is_inherited {
        if can_resend(&init) {
            journal.begin(Begin { init, region })?;
        } else {
            tracing::info!("the mount will not survive its process: that needs Linux 6.9 or newer");
        }
    }
    answer_first(&device, &answer, is_inherited)?;
    dup2_stdin(&device)?;
    Ok(session)
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

/// The session's answer to the request.
fn converse<F: Filesystem>(session: &Session<F>, socket: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    write(&socket, request)?;
    // The session reads requests until that fails: from now on its descriptor cannot be read.
    let unreadable = File::options().write(true).open("/dev/null")?;
    let stop = |_: &Request<'_>| {
        // If it fails, the session waits for requests that do not come, and the mounter starts another process.
        let _ = dup2_stdin(&unreadable);
    };
    match session.run_with_callbacks(|_| {}, stop, false) {
        Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {}
        Err(error) => return Err(error),
        Ok(()) => return Err(io::Error::other("the session has ended")),
    }
    let mut answer = vec![0; LONGEST_ANSWER];
    let length = read(&socket, &mut answer)?;
    answer.truncate(length);
    Ok(answer)
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
