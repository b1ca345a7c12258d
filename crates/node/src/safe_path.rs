//! Paths below the kubelet's directory, opened component by component and never through a symbolic link: pods can write
//! to parts of them, and a link placed there must not lead a mount or a file of ours anywhere else.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};

/// The directory that all other paths are resolved beneath.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    path: PathBuf,
}

/// A name in a directory that is held open, so that renames and links above it do not matter.
#[derive(Debug)]
pub struct SafePath {
    parent: OwnedFd,
    name: OsString,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory =
            rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { directory, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path is strictly below, without any `..`.
    pub fn contains(&self, path: &Path) -> bool {
        path.strip_prefix(&self.path).is_ok_and(|rest| {
            rest.components().all(|part| matches!(part, Component::Normal(_)))
                && rest.components().next().is_some()
        })
    }

    /// Opens an existing directory.
    pub fn open_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        open_beneath(&self.directory, self.relative(path)?, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The parent must exist; the path itself need not.
    pub fn locate(&self, path: &Path) -> io::Result<SafePath> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let parent =
            if parent == self.path { self.directory.try_clone()? } else { self.open_directory(parent)? };
        Ok(SafePath { parent, name: name.to_owned() })
    }

    /// Creates the directory and its missing ancestors.
    pub fn create(&self, path: &Path) -> io::Result<SafePath> {
        let located = match self.locate(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut parent = self.directory.try_clone()?;
                for name in self.relative(path)?.parent().into_iter().flatten() {
                    make(&parent, name)?;
                    parent = open_beneath(&parent, Path::new(name), OFlags::PATH | OFlags::DIRECTORY)?;
                }
                SafePath { parent, name: path.file_name().unwrap_or_default().to_owned() }
            }
            located => located?,
        };
        make(&located.parent, &located.name)?;
        Ok(located)
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

impl SafePath {
    /// Valid only while `self` keeps the parent open.
    pub fn path(&self) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// Removes the empty directory, if it exists.
    pub fn remove_directory(&self) -> io::Result<()> {
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

/// Follows no link, and never leaves `directory`.
pub fn open_beneath(directory: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(directory, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)?)
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
        assert!(root.open_directory(&folder.path().join("link")).is_err());
        assert!(root.create(&folder.path().join("link/x")).is_err());
        assert!(root.create(outside.path()).is_err() && root.create(folder.path()).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_are_created_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let path = folder.path().join("a/b/c");
        let created = root.create(&path).unwrap();
        assert!(path.is_dir() && created.path().is_dir());
        root.create(&path).unwrap().remove_directory().unwrap();
        assert!(!path.exists());
        root.locate(&path).unwrap().remove_directory().unwrap();
    }
}
