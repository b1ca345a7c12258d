//! The driver under another version number, for upgrade and downgrade tests.

use std::path::PathBuf;

use anyhow::Result;

use super::{OURS, archive_path, image};
use crate::cache::{Cache, checkout};
use crate::cargo;
use crate::copy::{mirror, set_version};
use crate::progress::step;

/// Never used for a release.
pub const VERSION: &str = "99.0.0";
pub const TAG: &str = "next";

/// Compiles a copy of the checkout with another version number. The mount process stays the same, because compiling it takes
/// minutes: a mount that moves to the other version is continued by the same program. That another one can continue it, too, is
/// what `cargo xtask test --released` finds out.
pub fn build(cache: &Cache) -> Result<()> {
    let copy = cache.root().join("next");
    mirror(checkout(), &copy)?;
    set_version(&copy, VERSION)?;
    let (programs, release) = (cargo::unoptimised_from(cache, &copy)?, cache.target().join("release"));
    let find = |program: &str| match program {
        "s3-csi-mountpoint" => release.join(program),
        _ => programs.join(program),
    };
    step("images of another version", || {
        let write = |name: &&str| image(name, TAG, &find)?.write(&archive(cache, name));
        OURS.iter().try_for_each(|name| write(name).map(drop))
    })
}

/// The archives that the node imports for an upgrade.
pub fn archives(cache: &Cache) -> Vec<PathBuf> {
    OURS.iter().map(|name| archive(cache, name)).collect()
}

fn archive(cache: &Cache, name: &str) -> PathBuf {
    archive_path(&cache.images(), &format!("{name}-{TAG}"))
}
