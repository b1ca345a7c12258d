//! The library's results as replies to the kernel.

use bytes::Bytes;
use fuser::{
    ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite,
};
use mountpoint_s3_fs::fs::{Attr, DirectoryEntry, DirectoryReplier, Entry, Opened, StatFs};
use rustix::io::Errno;
use tracing::Span;

use super::failure::Failure;
use crate::meter::METER;

/// Logs in the span of the request. That a file does not exist is not worth a line.
pub(super) fn log_failure(error: &Failure) -> i32 {
    let errno = error.errno();
    let operation = Span::current().metadata().map_or("a request", tracing::Metadata::name);
    metrics::counter!("fuse.request_errors", "fuse_request" => operation).increment(1);
    if errno == Errno::NOENT.raw_os_error() {
        tracing::debug!(errno, "{operation} failed: {error}");
    } else {
        tracing::warn!(errno, "{operation} failed: {error}");
    }
    errno
}

fn count_bytes(operation: &'static str, bytes: usize) {
    metrics::counter!("fuse.total_bytes", "type" => operation).increment(bytes as u64);
    metrics::histogram!("fuse.io_size", "fuse_request" => operation).record(bytes as f64);
}

/// A function that replies with a result, or with the errno of a failure.
macro_rules! reply_with {
    ($name:ident: $reply:ident, |$to:ident, $value:ident: $result:ty| $success:expr) => {
        pub(super) fn $name($to: $reply) -> impl FnOnce(Result<$result, i32>) + Send + 'static {
            move |result| match result {
                Ok($value) => $success,
                Err(errno) => $to.error(errno),
            }
        }
    };
}

reply_with!(entry: ReplyEntry, |reply, entry: Entry| reply.entry(&entry.ttl, &entry.attr, entry.generation));
reply_with!(attributes: ReplyAttr, |reply, of: Attr| reply.attr(&of.ttl, &of.attr));
reply_with!(opened: ReplyOpen, |reply, opened: Opened| reply.opened(opened.fh, opened.flags));
reply_with!(empty: ReplyEmpty, |reply, _done: ()| reply.ok());
reply_with!(names: ReplyDirectory, |reply, _done: ()| reply.ok());
reply_with!(names_and_attributes: ReplyDirectoryPlus, |reply, _done: ()| reply.ok());
reply_with!(written: ReplyWrite, |reply, bytes: u32| {
    reply.written(bytes);
    count_bytes("write", bytes as usize);
    METER.written(bytes as usize);
});
reply_with!(data: ReplyData, |reply, content: Bytes| {
    reply.data(&content);
    count_bytes("read", content.len());
    METER.read(content.len());
});
reply_with!(statfs: ReplyStatfs, |reply, of: StatFs| reply.statfs(
    of.total_blocks,
    of.free_blocks,
    of.available_blocks,
    of.total_inodes,
    of.free_inodes,
    of.block_size,
    of.maximum_name_length,
    of.fragment_size,
));

pub(super) struct Names<'a>(pub(super) &'a mut ReplyDirectory);

impl DirectoryReplier for Names<'_> {
    fn add(&mut self, entry: DirectoryEntry) -> bool {
        self.0.add(entry.ino, entry.offset, entry.attr.kind, entry.name)
    }
}

pub(super) struct NamesAndAttributes<'a>(pub(super) &'a mut ReplyDirectoryPlus);

impl DirectoryReplier for NamesAndAttributes<'_> {
    fn add(&mut self, entry: DirectoryEntry) -> bool {
        self.0.add(entry.ino, entry.offset, entry.name, &entry.ttl, &entry.attr, entry.generation)
    }
}
