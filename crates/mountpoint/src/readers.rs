//! The threads that read the kernel's requests, as many as there is work for. The kernel fails a request with `EIO` if the process
//! is killed while the request is copied into memory that was never used before, because a process that is being killed gets no
//! memory. So what each thread reads first is no request of a program: it is the kernel's first request, which a session has
//! to see in any case, from a file that is long enough to have the thread's buffer used.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use fuser::{Filesystem, Request, Session, SessionACL};
use nix_of_fuser::unistd::dup2;
use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes of a buffer that are used before a request comes. Only longer writes need more: programs write at most 128 KiB at once,
/// with few exceptions, and the first such write of each thread is what remains at risk.
const USED_BEFORE: u64 = (128 + 4) * 1024;
/// Bytes for a session's answer to the first request, which is far shorter.
const LONGEST_ANSWER: usize = 4096;

/// What every thread needs.
pub(crate) struct Reading<F> {
    pub(crate) front: F,
    pub(crate) users: SessionACL,
    pub(crate) device: OwnedFd,
    /// The kernel's first request, which it sends once in the life of a mount.
    pub(crate) init: Vec<u8>,
    pub(crate) most_threads: usize,
}

/// The end of all threads.
pub(crate) struct Ended(Receiver<()>);

struct Readers<F> {
    reading: Reading<F>,
    threads: AtomicUsize,
    /// Threads that wait for a request.
    idle: AtomicUsize,
}

impl<F: Filesystem + Clone + Send + Sync + 'static> Reading<F> {
    /// Calls `begin` with the session's answer to the kernel's first request, and then reads requests.
    pub(crate) fn start(self, begin: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<Ended> {
        let readers = Readers { reading: self, threads: AtomicUsize::new(0), idle: AtomicUsize::new(0) };
        let (ended, end) = mpsc::channel();
        let (answered, answers) = mpsc::channel();
        let (go, may_go_on) = mpsc::channel::<()>();
        let on_answer = move |answer| answered.send(answer).is_ok() && may_go_on.recv().is_ok();
        Arc::new(readers).add(on_answer, ended)?;
        begin(&answers.recv().map_err(|_| io::Error::other("the session has ended"))?)?;
        go.send(()).map_err(io::Error::other)?;
        Ok(Ended(end))
    }
}

impl Ended {
    /// Returns when the mount has ended.
    pub(crate) fn wait(&self) {
        // Nothing is sent: this returns when the last sender is dropped.
        let _ = self.0.recv();
    }
}

impl<F: Filesystem + Clone + Send + Sync + 'static> Readers<F> {
    /// Another thread, unless there are enough. It reads requests if `on_answer` to the first one allows it.
    fn add(
        self: Arc<Self>,
        on_answer: impl FnOnce(Vec<u8>) -> bool + Send + 'static,
        ended: Sender<()>,
    ) -> io::Result<()> {
        let most = self.reading.most_threads;
        let one_more = |threads| (threads < most).then_some(threads + 1);
        let Ok(number) = self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) else {
            return Ok(());
        };
        self.idle.fetch_add(1, Ordering::Relaxed);
        let read = move || {
            if let Err(error) = self.read(on_answer, &ended) {
                tracing::error!(%error, "a thread that reads requests has failed");
            }
            // Those who wait for the end may rely on it that nothing of the front is left.
            drop(self);
            drop(ended);
        };
        thread::Builder::new().name(format!("fuse-reader-{number}")).spawn(read).map(drop)
    }

    /// Reads and handles requests until the mount ends.
    fn read(self: &Arc<Self>, on_answer: impl FnOnce(Vec<u8>) -> bool, ended: &Sender<()>) -> io::Result<()> {
        let Reading { front, users, device, init, .. } = &self.reading;
        let file = first_request(init)?;
        let session = Session::from_fd(front.clone(), file.try_clone()?.into(), same(users));
        let first = RefCell::new(Some((file, on_answer)));
        let before = |request: &Request<'_>| {
            // The kernel sends many of the latter at once, and they take no time.
            if first.borrow().is_none()
                && !request.is_forget()
                && self.idle.fetch_sub(1, Ordering::Relaxed) == 1
                && let Err(error) = Arc::clone(self).add(go_on, ended.clone())
            {
                tracing::warn!(%error, "cannot start another thread that reads requests");
            }
        };
        let after = |request: &Request<'_>| match first.take() {
            None if request.is_forget() => {}
            None => _ = self.idle.fetch_add(1, Ordering::Relaxed),
            Some((file, on_answer)) => {
                let may_begin = answer(&file).map(on_answer);
                let redirect = || {
                    let redirected = dup2(device.as_raw_fd(), session.as_fd().as_raw_fd());
                    redirected.map(drop).map_err(io::Error::from)
                };
                // Without it, nothing is left to read, which ends the thread.
                if let Err(error) = may_begin.and_then(|may| if may { redirect() } else { Ok(()) }) {
                    tracing::error!(%error, "a thread cannot read requests");
                }
            }
        };
        session.run_with_callbacks(before, after, false)
    }
}

/// A file with the kernel's first request. A session adds its answer.
fn first_request(init: &[u8]) -> io::Result<File> {
    let file = File::from(memfd_create("init", MemfdFlags::CLOEXEC)?);
    file.write_all_at(init, 0)?;
    file.set_len(USED_BEFORE)?;
    Ok(file)
}

fn answer(file: &File) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; LONGEST_ANSWER];
    let length = file.read_at(&mut answer, USED_BEFORE)?;
    answer.truncate(length);
    Ok(answer)
}

/// The kernel has an answer.
fn go_on(_: Vec<u8>) -> bool {
    true
}

/// It cannot be copied.
fn same(users: &SessionACL) -> SessionACL {
    match users {
        SessionACL::All => SessionACL::All,
        SessionACL::RootAndOwner => SessionACL::RootAndOwner,
        SessionACL::Owner => SessionACL::Owner,
    }
}
