//! The cache: programs and images that take long to build, and the state of running clusters.

use std::path::{Path, PathBuf};

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

    pub fn root(&self) -> &Path {
        &self.0
    }
}

/// The root of the checkout that this program was built from.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in a folder of the workspace")
}
