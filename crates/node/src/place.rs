//! Paths below kubelet's folder, reached step by step and never through a symbolic link: parts of them are written by
//! pods, and a link placed there must not lead us anywhere else.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};

/// A folder that everything else is reached from.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
    path: PathBuf,
}

/// A name in a folder that is held open: mounts upon it and removals of it cannot be led astray.
#[derive(Debug)]
pub struct Place {
    parent: OwnedFd,
    name: OsString,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder =
            rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { folder, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path is below, without any `..` to leave again.
    pub fn contains(&self, path: &Path) -> bool {
        path.strip_prefix(&self.path).is_ok_and(|rest| {
            rest.components().all(|part| matches!(part, Component::Normal(_)))
                && rest.components().next().is_some()
        })
    }

    /// An existing folder below.
    pub fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        open_beneath(&self.folder, self.relative(path)?, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The place of something below, whose parent exists.
    pub fn place(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = if parent == self.path { self.folder.try_clone()? } else { self.folder(parent)? };
        Ok(Place { parent, name: name.to_owned() })
    }

    /// The place of a folder below, made with every folder above it.
    pub fn create(&self, path: &Path) -> io::Result<Place> {
        let place = match self.place(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut parent = self.folder.try_clone()?;
                for name in self.relative(path)?.parent().into_iter().flatten() {
                    make(&parent, name)?;
                    parent = open_beneath(&parent, Path::new(name), OFlags::PATH | OFlags::DIRECTORY)?;
                }
                Place { parent, name: path.file_name().unwrap_or_default().to_owned() }
            }
            place => place?,
        };
        make(&place.parent, &place.name)?;
        Ok(place)
    }

    fn relative<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        let outside = || {
            let message = format!("{} is not below {}", path.display(), self.path.display());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        if self.contains(path) {
            path.strip_prefix(&self.path).map_err(|_| outside())
        } else {
            Err(outside())
        }
    }
}

impl Place {
    /// Good for as long as this place is held.
    pub fn path(&self) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// Removes the empty folder; none is as good.
    pub fn remove_folder(&self) -> io::Result<()> {
        match unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) {
            Err(error) if error != rustix::io::Errno::NOENT => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn make(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Err(error) if error != rustix::io::Errno::EXIST => Err(error.into()),
        _ => Ok(()),
    }
}

/// No link on the way, none at the end, and never above where it began.
pub fn open_beneath(folder: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(folder, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        for path in ["link/new", "../new", "a/../../new"] {
            assert!(root.create(&folder.path().join(path)).is_err(), "{path}");
        }
        assert!(root.folder(&folder.path().join("link")).is_err());
        assert!(root.create(&folder.path().join("link/x")).is_err());
        assert!(root.create(outside.path()).is_err() && root.create(folder.path()).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_are_made_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let path = folder.path().join("a/b/c");
        let place = root.create(&path).unwrap();
        assert!(path.is_dir() && place.path().is_dir());
        root.create(&path).unwrap().remove_folder().unwrap();
        assert!(!path.exists());
        root.place(&path).unwrap().remove_folder().unwrap();
    }
}
