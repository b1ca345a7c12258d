//! Where everything is kept that is too dear to make again: programs, images and the state of running clusters.

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
            .context("no place for the cache: set S3_CSI_CACHE or HOME")?;
        std::fs::create_dir_all(&root)
            .with_context(|| format!("cannot create the cache {}", root.display()))?;
        // One spelling of the path: the node's processes are recognised by it.
        Ok(Self(root.canonicalize()?))
    }

    /// The cache that this cluster's folder lies in.
    pub fn containing(cluster: &Path) -> Option<Self> {
        Some(Self(cluster.parent()?.parent()?.to_owned()))
    }

    /// What Go keeps between builds, so that one folder holds all that a person may want to remove.
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

    /// Cargo's output for what is built on behalf of a command, so that a fresh clone compiles only what changed.
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
