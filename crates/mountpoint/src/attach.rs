//! A prepared file system answers the kernel on a FUSE descriptor.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fuser::{Session, SessionACL};
use mounter::handover::Refused;
use mountpoint_s3_fs::fuse::config::MountPoint;
use mountpoint_s3_fs::fuse::session::FuseSession;

use crate::leave;
use crate::options::Options;
use crate::prepare::{Front, Prepared, bad_option, cannot_serve};
use crate::takeover;

impl Prepared {
    /// The session runs from now on.
    pub(crate) fn attach(self, options: &Options) -> Result<FuseSession, Refused> {
        let Self { front, survival, finish, cache_folder, threads } = self;
        let (descriptor, users) = (open(&options.mount_point)?, allowed_users(options));
        let session = match front {
            Front::Own(front) => {
                let session = match survival {
                    Some(survival) => {
                        let (open_files, journal) = (front.open_files.clone(), survival.journal.clone());
                        leave::on_request(Arc::clone(&open_files), journal).map_err(cannot_serve)?;
                        let session = takeover::begin(front, descriptor, users, survival);
                        let session = session.map_err(cannot_serve)?;
                        open_files.reopen_in_background().map_err(cannot_serve)?;
                        session
                    }
                    None => Session::from_fd(front, descriptor, users),
                };
                FuseSession::from_session(session, threads, false)
            }
            Front::Library(front) => {
                FuseSession::from_session(Session::from_fd(*front, descriptor, users), threads, false)
            }
        };
        let mut session = session.map_err(cannot_serve)?;
        session.run_on_close(Box::new(|| finish.wait()));
        if let Some(folder) = cache_folder {
            session.run_on_close(Box::new(move || drop(folder)));
        }
        Ok(session)
    }
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
