//! What the library says, as the kernel wants to hear it.

use fuser::{ReplyAttr, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen};
use mountpoint_s3_fs::fs::{Attr, DirectoryEntry, DirectoryReplier, Entry, Error, Opened, ToErrno as _};
use rustix::io::Errno;
use tracing::Span;

/// In the span of its request. A file that is not there is an everyday answer.
pub(crate) fn log_failure(error: &Error) -> i32 {
    let errno = error.to_errno();
    let operation = Span::current().metadata().map_or("a request", tracing::Metadata::name);
    metrics::counter!("fuse.request_errors", "fuse_request" => operation).increment(1);
    if errno == Errno::NOENT.raw_os_error() {
        tracing::debug!(errno, "{operation} failed: {error:#}");
    } else {
        tracing::warn!(errno, "{operation} failed: {error:#}");
    }
    errno
}

pub(crate) fn count_bytes(operation: &'static str, bytes: usize) {
    metrics::counter!("fuse.total_bytes", "type" => operation).increment(bytes as u64);
    metrics::histogram!("fuse.io_size", "fuse_request" => operation).record(bytes as f64);
}

pub(crate) fn entry(reply: ReplyEntry) -> impl FnOnce(Result<Entry, i32>) + Send + 'static {
    |result| match result {
        Ok(entry) => reply.entry(&entry.ttl, &entry.attr, entry.generation),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn attributes(reply: ReplyAttr) -> impl FnOnce(Result<Attr, i32>) + Send + 'static {
    |result| match result {
        Ok(of) => reply.attr(&of.ttl, &of.attr),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn opened(reply: ReplyOpen) -> impl FnOnce(Result<Opened, i32>) + Send + 'static {
    |result| match result {
        Ok(opened) => reply.opened(opened.fh, opened.flags),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), i32>) + Send + 'static {
    |result| match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) struct Names<'a>(pub(crate) &'a mut ReplyDirectory);

impl DirectoryReplier for Names<'_> {
    fn add(&mut self, entry: DirectoryEntry) -> bool {
        self.0.add(entry.ino, entry.offset, entry.attr.kind, entry.name)
    }
}

pub(crate) struct NamesAndAttributes<'a>(pub(crate) &'a mut ReplyDirectoryPlus);

impl DirectoryReplier for NamesAndAttributes<'_> {
    fn add(&mut self, entry: DirectoryEntry) -> bool {
        self.0.add(entry.ino, entry.offset, entry.name, &entry.ttl, &entry.attr, entry.generation)
    }
}
