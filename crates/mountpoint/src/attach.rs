//! A prepared file system answers the kernel on a FUSE descriptor.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fuser::{Filesystem, SessionACL};
use mounter::handover::Refused;
use mountpoint_s3_fs::data_cache::ManagedCacheDir;
use mountpoint_s3_fs::fuse::config::MountPoint;
use mountpoint_s3_fs::fuse::session::FuseSession;

use crate::fuse::Finish;
use crate::leave;
use crate::options::Options;
use crate::prepare::{Front, Prepared, bad_option, cannot_serve};
use crate::readers::Ended;
use crate::takeover;

/// A bucket that is served.
pub(crate) struct Attached {
    session: Session,
    finish: Finish,
    /// Removed at the end.
    cache_folder: Option<ManagedCacheDir>,
}

enum Session {
    Surviving(Ended),
    Plain(FuseSession),
}

impl Prepared {
    /// The session runs from now on.
    pub(crate) fn attach(self, options: &Options) -> Result<Attached, Refused> {
        let Self { front, survival, finish, cache_folder, threads } = self;
        let (descriptor, users) = (open(&options.mount_point)?, allowed_users(options));
        let session = match (front, survival) {
            (Front::Own(front), Some(survival)) => {
                let (open_files, journal) = (front.open_files.clone(), survival.journal.clone());
                leave::on_request(Arc::clone(&open_files), journal).map_err(cannot_serve)?;
                let ended = takeover::begin(front, descriptor, users, threads, survival);
                let ended = ended.map_err(cannot_serve)?;
                open_files.reopen_in_background().map_err(cannot_serve)?;
                Session::Surviving(ended)
            }
            (Front::Own(front), None) => plain(fuser::Session::from_fd(front, descriptor, users), threads)?,
            (Front::Library(front), _) => plain(fuser::Session::from_fd(*front, descriptor, users), threads)?,
        };
        Ok(Attached { session, finish, cache_folder })
    }
}

impl Attached {
    /// Returns when the mount has ended, and everything that was begun.
    pub(crate) fn join(self) -> anyhow::Result<()> {
        match self.session {
            Session::Surviving(ended) => ended.wait(),
            Session::Plain(session) => session.join()?,
        }
        self.finish.wait();
        drop(self.cache_folder);
        Ok(())
    }
}

fn plain<F>(session: fuser::Session<F>, threads: usize) -> Result<Session, Refused>
where
    F: Filesystem + Send + Sync + 'static,
{
    FuseSession::from_session(session, threads, false).map(Session::Plain).map_err(cannot_serve)
}

fn open(mount_point: &Path) -> Result<OwnedFd, Refused> {
    match MountPoint::new(mount_point).map_err(bad_option)? {
        MountPoint::FileDescriptor(descriptor) => Ok(descriptor),
        MountPoint::Directory(path) => Err(bad_option(format!("{} is not a descriptor", path.display()))),
    }
}

/// Which users may enter; the kernel checks what the modes allow them.
fn allowed_users(options: &Options) -> SessionACL {
    match options {
        Options { allow_root: true, .. } => SessionACL::RootAndOwner,
        Options { allow_other: true, .. } => SessionACL::All,
        _ => SessionACL::Owner,
    }
}
