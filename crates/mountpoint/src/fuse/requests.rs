//! Each kind of request of the kernel. Long, because the trait has a method for each, and some have fifteen arguments.

use std::ffi::OsStr;
use std::time::SystemTime;

use fuser::consts::FUSE_PARALLEL_DIROPS;
use fuser::{
    Filesystem, KernelConfig, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
};
use futures::executor::block_on;
use rustix::io::Errno;

use super::FuseFilesystem;
use super::attributes::{Change, Requested, moment};
use super::failure::Failure;
use super::inherited::Concerned;
use super::replies::{
    Names, NamesAndAttributes, attributes, data, empty, entry, log_failure, names, names_and_attributes,
    opened, statfs, written,
};

/// The library's metrics are made of spans with this target and these names.
macro_rules! span {
    ($name:literal, $request:expr, $($field:tt)*) => {
        tracing::warn_span!(
            target: "mountpoint_s3_fs::fuse", $name, req = $request.unique(), pid = $request.pid(),
            name = tracing::field::Empty, $($field)*
        )
    };
}

/// Where the request comes from. One that mount processes have died of is refused, after what has to be done all the same.
macro_rules! admit {
    ($front:expr, $request:expr, $reply:expr $(, $otherwise:expr)?) => {
        match $front.repetitions.admit($request) {
            Ok(origin) => origin,
            Err(failure) => {
                $($otherwise;)?
                return $reply.error(log_failure(&failure));
            }
        }
    };
}

/// For every other request the trait replies with the error that the library would reply with.
impl Filesystem for FuseFilesystem {
    fn init(&self, _request: &Request<'_>, config: &mut KernelConfig) -> Result<(), i32> {
        // Without it, the kernel looks up the names of a directory one after the other. Every kernel that is supported has
        // it.
        let _ = config.add_capabilities(FUSE_PARALLEL_DIROPS);
        block_on(self.files().init(config))
    }

    fn statfs(&self, request: &Request<'_>, ino: u64, reply: ReplyStatfs) {
        admit!(self, request, reply);
        let files = self.files();
        let handler = async move { files.statfs(ino).await };
        self.answer(span!("statfs", request, ino), handler, statfs(reply));
    }

    fn lookup(&self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        admit!(self, request, reply);
        let (open_files, name) = (self.open_files(), name.to_owned());
        let span = span!("lookup", request, ino = parent, wanted = ?name);
        let handler = async move {
            open_files.reopen_writers(Concerned::Named(parent, &name)).await;
            open_files.storage.files.lookup(parent, &name).await
        };
        self.answer(span, handler, entry(reply));
    }

    fn forget(&self, _request: &Request<'_>, ino: u64, lookups: u64) {
        block_on(self.files().forget(ino, lookups));
    }

    fn getattr(&self, request: &Request<'_>, ino: u64, _handle: Option<u64>, reply: ReplyAttr) {
        admit!(self, request, reply);
        let open_files = self.open_files();
        let handler = async move {
            open_files.reopen_writers(Concerned::File(ino)).await;
            open_files.storage.files.getattr(ino).await
        };
        self.answer(span!("getattr", request, ino), handler, attributes(reply));
    }

    fn setattr(
        &self,
        request: &Request<'_>,
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        admit!(self, request, reply);
        let requested = Requested { mode, uid, gid, size, atime, mtime };
        let (open_files, ignored) = (self.open_files(), self.ignores_attributes);
        let handler = async move {
            let files = &open_files.storage.files;
            open_files.reopen_writers(Concerned::File(ino)).await;
            let current = files.getattr(ino).await?;
            match requested.change_of(&current.attr) {
                Change::Nothing => Ok(current),
                // The library accepts it for a file that is being written, and so `touch` and `cp -p` work. That must not
                // depend on whether a close has published the file already.
                Change::Attributes if ignored || open_files.is_open_for_writing(ino) => Ok(current),
                Change::Attributes => {
                    let (atime, mtime) = (atime.map(moment), mtime.map(moment));
                    Ok(files.setattr(ino, atime, mtime, None, flags).await?)
                }
                // The library would ignore it for a file that is being written.
                Change::Length { from, to } => Err(Failure::Truncation { from, to }),
            }
        };
        self.answer(span!("setattr", request, ino), handler, attributes(reply));
    }

    fn open(&self, request: &Request<'_>, ino: u64, flags: i32, reply: ReplyOpen) {
        let origin = admit!(self, request, reply);
        let (open_files, pid) = (self.open_files(), request.pid());
        let handler = async move { open_files.open(ino, flags, pid, origin).await };
        self.answer(span!("open", request, ino), handler, opened(reply));
    }

    fn read(
        &self,
        request: &Request<'_>,
        ino: u64,
        fh: u64,
        offset: i64,
        size: u32,
        _flags: i32,
        _lock: Option<u64>,
        reply: ReplyData,
    ) {
        admit!(self, request, reply);
        let open_files = self.open_files();
        let handler = async move { open_files.read(ino, fh, offset, size).await };
        self.answer(span!("read", request, ino, fh, offset, size), handler, data(reply));
    }

    fn write(
        &self,
        request: &Request<'_>,
        ino: u64,
        fh: u64,
        offset: i64,
        content: &[u8],
        _write_flags: u32,
        _flags: i32,
        _lock: Option<u64>,
        reply: ReplyWrite,
    ) {
        let origin = admit!(self, request, reply);
        let span = span!("write", request, ino, fh, offset, length = content.len());
        let (open_files, content) = (self.open_files(), content.to_vec());
        let handler = async move { open_files.write(ino, fh, offset, &content, origin).await };
        self.answer(span, handler, written(reply));
    }

    fn fsync(&self, request: &Request<'_>, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        admit!(self, request, reply);
        let open_files = self.open_files();
        let handler = async move { open_files.sync(ino, fh, datasync).await };
        self.answer(span!("fsync", request, ino, fh), handler, empty(reply));
    }

    fn flush(&self, request: &Request<'_>, ino: u64, fh: u64, lock: u64, reply: ReplyEmpty) {
        admit!(self, request, reply);
        let (open_files, pid) = (self.open_files(), request.pid());
        let handler = async move { open_files.flush(ino, fh, lock, pid).await };
        self.answer(span!("flush", request, ino, fh), handler, empty(reply));
    }

    fn release(
        &self,
        request: &Request<'_>,
        ino: u64,
        fh: u64,
        flags: i32,
        _lock: Option<u64>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let open_files = self.open_files();
        let origin = admit!(self, request, reply, open_files.forget(fh));
        let handler = async move { open_files.release(ino, fh, flags, origin).await };
        self.answer(span!("release", request, ino, fh), handler, empty(reply));
    }

    fn opendir(&self, request: &Request<'_>, ino: u64, flags: i32, reply: ReplyOpen) {
        let origin = admit!(self, request, reply);
        let open_files = self.open_files();
        let handler = async move { open_files.open_directory(ino, flags, origin).await };
        self.answer(span!("opendir", request, ino), handler, opened(reply));
    }

    fn readdir(&self, request: &Request<'_>, ino: u64, fh: u64, offset: i64, mut reply: ReplyDirectory) {
        admit!(self, request, reply);
        let open_files = self.open_files();
        self.workers.run(span!("readdir", request, ino, fh, offset), async move {
            let listed = open_files.list(fh, offset, false, Names(&mut reply)).await;
            names(reply)(listed.map_err(|failure| log_failure(&failure)));
        });
    }

    fn readdirplus(
        &self,
        request: &Request<'_>,
        ino: u64,
        fh: u64,
        offset: i64,
        mut reply: ReplyDirectoryPlus,
    ) {
        admit!(self, request, reply);
        let open_files = self.open_files();
        self.workers.run(span!("readdirplus", request, ino, fh, offset), async move {
            let listed = open_files.list(fh, offset, true, NamesAndAttributes(&mut reply)).await;
            names_and_attributes(reply)(listed.map_err(|failure| log_failure(&failure)));
        });
    }

    fn releasedir(&self, request: &Request<'_>, ino: u64, fh: u64, _flags: i32, reply: ReplyEmpty) {
        let open_files = self.open_files();
        let origin = admit!(self, request, reply, open_files.forget(fh));
        let handler = async move { open_files.release_directory(fh, origin).await };
        self.answer(span!("releasedir", request, ino, fh), handler, empty(reply));
    }

    fn mknod(
        &self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let origin = admit!(self, request, reply);
        let (open_files, name) = (self.open_files(), name.to_owned());
        let span = span!("mknod", request, ino = parent, wanted = ?name);
        let handler = async move {
            let created = open_files.storage.files.mknod(parent, &name, mode, umask, device).await;
            origin.created(created, &open_files.storage, parent, &name).await
        };
        self.answer(span, handler, entry(reply));
    }

    fn mkdir(
        &self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let origin = admit!(self, request, reply);
        let (open_files, name) = (self.open_files(), name.to_owned());
        let span = span!("mkdir", request, ino = parent, wanted = ?name);
        let handler = async move {
            let created = open_files.storage.files.mkdir(parent, &name, mode, umask).await;
            origin.created(created, &open_files.storage, parent, &name).await
        };
        self.answer(span, handler, entry(reply));
    }

    fn rmdir(&self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let origin = admit!(self, request, reply);
        let (files, name) = (self.files(), name.to_owned());
        let span = span!("rmdir", request, ino = parent, wanted = ?name);
        let handler = async move { origin.removed(files.rmdir(parent, &name).await) };
        self.answer(span, handler, empty(reply));
    }

    fn unlink(&self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let origin = admit!(self, request, reply);
        let (open_files, name) = (self.open_files(), name.to_owned());
        let span = span!("unlink", request, ino = parent, wanted = ?name);
        let handler = async move { open_files.unlink(parent, &name, origin).await };
        self.answer(span, handler, empty(reply));
    }

    fn rename(
        &self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: u32,
        reply: ReplyEmpty,
    ) {
        let origin = admit!(self, request, reply);
        let (open_files, name, new_name) = (self.open_files(), name.to_owned(), new_name.to_owned());
        let span = span!("rename", request, ino = parent, wanted = ?name);
        let handler = async move {
            let (from, to) = ((parent, name.as_os_str()), (new_parent, new_name.as_os_str()));
            open_files.rename(from, to, flags, origin).await
        };
        self.answer(span, handler, empty(reply));
    }

    /// The kernel then creates files with `mknod` and `open`, and does not ask again.
    fn create(
        &self,
        _request: &Request<'_>,
        _parent: u64,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::NOSYS.raw_os_error());
    }

    /// Programs send it to check whether they write to a terminal.
    fn ioctl(
        &self,
        _request: &Request<'_>,
        _ino: u64,
        _fh: u64,
        _flags: u32,
        _command: u32,
        _content: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::NOSYS.raw_os_error());
    }
}
