//! The mount is to move to another pod. This process may leave it only if another one can continue everything: files that are
//! being written and are larger than what is kept of them would be lost. Programs that write or rename wait meanwhile, so that this
//! does not change until the process is ended.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mounter::deadlines::WRITES_END;
use mounter::handover::{Code, MountReply, Refused};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::pipe;

use crate::fuse::OpenFiles;
use crate::journal::Journal;

/// On SIGTERM, tells the mounter whether it may end this process.
pub(crate) fn on_request(open_files: Arc<OpenFiles>, journal: Arc<Journal>) -> io::Result<()> {
    let (mut requests, signalled) = UnixStream::pair()?;
    pipe::register(SIGTERM, signalled)?;
    let serve = move || {
        let mut paused = None;
        while requests.read(&mut [0; 1]).is_ok_and(|read| read > 0) {
            paused = paused.or_else(|| open_files.pause_writes(WRITES_END));
            let reply = match (&paused, journal.lost_without_this_process()) {
                (None, _) => stay("a write or a rename takes long: the S3 server is slow"),
                (Some(_), Ok(0)) => leave(&journal),
                (Some(_), Ok(files)) => stay(&format!(
                    "{files} open files are larger than what is kept of them for another mount process; they can move when \
                     they are closed"
                )),
                (Some(_), Err(error)) => {
                    stay(&format!("no other mount process can continue this mount: {error}"))
                }
            };
            if reply != MountReply::Left {
                paused = None;
            }
            reply.print();
        }
    };
    std::thread::Builder::new().name("leave".to_owned()).spawn(serve).map(drop)
}

/// Nothing that was begun here is to be repeated there.
fn leave(journal: &Journal) -> MountReply {
    journal.leave();
    if journal.is_kept() { MountReply::Left } else { stay("its journal cannot be written") }
}

fn stay(reason: &str) -> MountReply {
    MountReply::Refused(Refused::new(Code::Busy, reason))
}
