//! A folder that plays kubelet's, for real mounts below it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use node::kernel;
use node::mounts::Mounts;
use node::safe_path::{Root, SafePath};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use s3_csi_tests::mountpoint_pod::LIMIT;
use s3_csi_tests::{cluster, within};
use tempfile::TempDir;

/// A node without a kubelet.
pub(crate) struct Ground {
    folder: TempDir,
    root: Root,
    /// One for all looks: it has to notice every change.
    pub(crate) mounts: Mounts,
}

impl Ground {
    pub(crate) fn new() -> Self {
        Self::prepared(|_| ())
    }

    /// Whose mounts reach copies of it, as kubelet's folder has them.
    pub(crate) fn shared() -> Self {
        Self::prepared(|folder| {
            mount_bind(folder, folder).unwrap();
            // In a new peer group: what it was bound from would get every mount as well.
            mount_change(folder, MountPropagationFlags::PRIVATE).unwrap();
            mount_change(folder, MountPropagationFlags::SHARED).unwrap();
        })
    }

    fn prepared(prepare: impl FnOnce(&Path)) -> Self {
        cluster();
        let folder = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        prepare(folder.path());
        let root = Root::open(folder.path()).unwrap();
        Self { folder, root, mounts: Mounts::default() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn place(&self, name: &str) -> SafePath {
        self.root.create(&self.path(name)).unwrap()
    }

    pub(crate) fn depth(&self, name: &str) -> usize {
        self.mounts.table().unwrap().at(&self.path(name)).count()
    }

    pub(crate) fn read(&self, name: &str) -> std::io::Result<String> {
        let path = self.path(name);
        within("reading", LIMIT, move || fs::read_to_string(path))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let names = fs::read_dir(self.folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        for name in names.filter_map(|name| name.into_string().ok()) {
            while self.depth(&name) > 0 {
                kernel::detach(&self.place(&name)).unwrap();
            }
        }
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}
