//! The driver as it was last released, mount process included, for a test of the upgrade from it to this checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{OURS, archive_path, image};
use crate::cache::{Cache, checkout};
use crate::cargo::{self, cargo};
use crate::command::run;
use crate::copy::set_version;
use crate::progress::step;

/// The commit of the last release. There is none yet: until then, a commit from which upgrades have to work.
const COMMIT: &str = "2cc81651d2f76cbe7d8d01103eb8fdc8c2cbcd17";
/// Instead of its own version, which this checkout has as well until the next release. It is also what lets Cargo keep the
/// crates of both apart, so that they can share the dependencies in the cache.
pub const VERSION: &str = "0.0.1";
pub const TAG: &str = "released";

/// Compiles the released sources, unless the cache has their images.
pub fn build(cache: &Cache) -> Result<()> {
    if archives(cache).is_ok() && chart(cache).exists() {
        return Ok(());
    }
    let sources = sources(cache);
    step("sources of the released version", || check_out(&sources))?;
    set_version(&sources, VERSION)?;
    // The lock file has the version, too.
    run(cargo(cache).args(["update", "--workspace", "--offline"]).current_dir(&sources))?;
    let programs = cargo::shipped_from(cache, &sources, &cache.target())?;
    step("images of the released version", || {
        let write =
            |name: &&str| image(name, TAG, &|program| programs.join(program))?.write(&archive(cache, name));
        OURS.iter().try_for_each(|name| write(name).map(drop))
    })?;
    // Cargo has put the released programs where suites expect those of this checkout.
    cargo::shipped(cache).map(drop)
}

/// The archives that the node imports.
pub fn archives(cache: &Cache) -> Result<Vec<PathBuf>> {
    let archives: Vec<PathBuf> = OURS.iter().map(|name| archive(cache, name)).collect();
    if let Some(missing) = archives.iter().find(|archive| !archive.exists()) {
        bail!("{} is missing: cargo xtask test --released", missing.display());
    }
    Ok(archives)
}

/// The released chart.
pub fn chart(cache: &Cache) -> PathBuf {
    sources(cache).join("charts/s3-csi")
}

fn sources(cache: &Cache) -> PathBuf {
    cache.root().join("released").join(COMMIT)
}

fn archive(cache: &Cache, name: &str) -> PathBuf {
    archive_path(&cache.images(), &format!("{name}-{TAG}-{COMMIT}"))
}

/// Files get the present time: Cargo would take older ones for those of an earlier release that it has compiled.
fn check_out(folder: &Path) -> Result<()> {
    let git = || {
        let mut git = Command::new("git");
        git.current_dir(checkout());
        git
    };
    run(git().args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])).with_context(|| {
        format!("this clone does not have the released commit {COMMIT}: `git fetch --unshallow`")
    })?;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let packed = tempfile::NamedTempFile::new()?;
    run(git().args(["archive", "--format=tar", "--output"]).arg(packed.path()).arg(COMMIT))?;
    let mut files = tar::Archive::new(fs::File::open(packed.path())?);
    files.set_preserve_mtime(false);
    Ok(files.unpack(folder)?)
}
