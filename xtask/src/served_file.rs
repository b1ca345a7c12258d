//! The smallest real FUSE mount: a filesystem of one file, and the way of its descriptor from the process that may mount
//! to the one that serves. The ground is proven with it before anything of the driver is involved.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyEntry, Request, Session, SessionACL,
};
use rustix::mount::{MountFlags, mount};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub const NAME: &str = "hello";
const FILE: INodeNo = INodeNo(2);
const CACHED: Duration = Duration::from_secs(1);

/// Opens the FUSE device and mounts it; needs the privilege to mount. The mount answers once somebody serves it.
pub fn mount_device(point: &Path) -> Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse").context("cannot open /dev/fuse")?;
    let options =
        CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd()))?;
    mount("served-file", point, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
        .with_context(|| format!("cannot mount {}", point.display()))?;
    Ok(device.into())
}

pub fn send_descriptor(socket: &UnixStream, descriptor: &OwnedFd) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        bail!("no room for the descriptor");
    }
    // Ancillary data travels only with at least one byte of ordinary data.
    sendmsg(socket, &[IoSlice::new(b"d")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

pub fn receive_descriptor(socket: &UnixStream) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.context("the message carried no descriptor")
}

/// Serves until the mount is gone; needs no privilege at all.
pub fn serve(descriptor: OwnedFd, content: &str) -> Result<()> {
    let filesystem = OneFile(content.to_owned());
    Ok(Session::from_fd(filesystem, descriptor, SessionACL::All, fuser::Config::default())?.run()?)
}

struct OneFile(String);

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE => (FileType::RegularFile, 0o444, self.0.len() as u64),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: 1,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 512,
            flags: 0,
        })
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attributes) if parent == INodeNo::ROOT && name == NAME => {
                reply.entry(&CACHED, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&CACHED, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if inode != FILE {
            return reply.error(Errno::ENOENT);
        }
        let content = self.0.as_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let to = from.saturating_add(size as usize).min(content.len());
        reply.data(&content[from..to]);
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        if offset == 0 {
            let _ = reply.add(FILE, 1, FileType::RegularFile, NAME);
        }
        reply.ok();
    }
}
