//! The cache: programs and images that take long to build, and the state of running clusters.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

/// The folder named by `S3_CSI_CACHE`, else `s3-csi` in the user's cache folder. Never inside the checkout.
#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

impl Cache {
    pub fn open() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("S3_CSI_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("s3-csi")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/s3-csi")))
            .context("no directory for the cache: set S3_CSI_CACHE or HOME")?;
        std::fs::create_dir_all(&root)
            .with_context(|| format!("cannot create the cache {}", root.display()))?;
        // Canonical, because the node's processes are identified by this path.
        Ok(Self(root.canonicalize()?))
    }

    /// The cache that contains this cluster's folder.
    pub fn containing(cluster: &Path) -> Option<Self> {
        Some(Self(cluster.parent()?.parent()?.to_owned()))
    }

    /// Go's own caches. They are below the cache, so that one folder is all there is to remove.
    pub fn go(&self) -> PathBuf {
        self.0.join("go")
    }

    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    pub fn clusters(&self) -> PathBuf {
        self.0.join("clusters")
    }

    /// Cargo's output for builds by xtask, shared by clones, so that a new clone compiles only what changed.
    pub fn target(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.0.join("target"), PathBuf::from)
    }

    /// To be called before our own code is compiled.
    pub fn adopt(&self, checkout: &Path) -> Result<()> {
        adopt(&self.target(), checkout)
    }

    pub fn root(&self) -> &Path {
        &self.0
    }
}

/// Cargo detects changes by modification time alone, and its output does not record the checkout it was built from, so it
/// would miss an edit that is older than another clone's build. When another checkout built last, all files of this one are
/// therefore marked as new.
fn adopt(target: &Path, checkout: &Path) -> Result<()> {
    let record = target.join("checkout");
    if std::fs::read(&record).is_ok_and(|last| last == checkout.as_os_str().as_bytes()) {
        return Ok(());
    }
    for folder in ["crates", "tests", "xtask"] {
        renew(&checkout.join(folder))?;
    }
    std::fs::create_dir_all(target)?;
    Ok(std::fs::write(record, checkout.as_os_str().as_bytes())?)
}

fn renew(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            renew(&entry.path())?;
        } else {
            std::fs::File::options().append(true).open(entry.path())?.set_modified(SystemTime::now())?;
        }
    }
    Ok(())
}

/// The root of the checkout that this program was built from.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in a folder of the workspace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_of_another_checkout_are_new() {
        let (target, checkout) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in ["crates/a/src", "tests", "xtask"] {
            std::fs::create_dir_all(checkout.path().join(folder)).unwrap();
        }
        let source = checkout.path().join("crates/a/src/lib.rs");
        let long_ago = SystemTime::UNIX_EPOCH;
        let is_new = || std::fs::metadata(&source).unwrap().modified().unwrap() > long_ago;
        let age = || std::fs::File::create(&source).unwrap().set_modified(long_ago).unwrap();
        let adopt = || adopt(target.path(), checkout.path()).unwrap();
        age();
        adopt();
        assert!(is_new());
        age();
        adopt();
        assert!(!is_new(), "it was not used by another checkout since");
        std::fs::write(target.path().join("checkout"), "/elsewhere").unwrap();
        adopt();
        assert!(is_new());
    }
}
