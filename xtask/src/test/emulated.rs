//! `cargo xtask test --arch arm64`: the images for another architecture than this machine's, whose programs an emulator runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::count::{Count, or_failed};
use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::cargo::SHIPPED;
use crate::command::capture;
use crate::cross::EMULATOR;
use crate::debian;
use crate::image;

/// Each program says its version, with the loader and the libraries of its image and nothing else.
pub(super) fn programs(cache: &Cache, architecture: Architecture) -> Result<Count> {
    debian::ensure_root()?;
    let mut count = Count::default();
    for built in image::platforms::build(cache, &[architecture])? {
        let folder = tempfile::tempdir()?;
        let (config, layer) = image::parts(&built.archive)?;
        if config["architecture"] != architecture.name() {
            bail!("{} is for {}", built.reference, config["architecture"]);
        }
        tar::Archive::new(&layer[..]).unpack(folder.path())?;
        fs::copy(EMULATOR, folder.path().join("emulator"))?;
        for (_, program) in SHIPPED.iter().filter(|(_, name)| folder.path().join("bin").join(name).exists()) {
            count += or_failed(program, says_its_version(folder.path(), program));
        }
    }
    if count.passed as usize + count.failures.len() != SHIPPED.len() {
        bail!("the images do not have all programs");
    }
    Ok(count)
}

fn says_its_version(root: &Path, program: &str) -> Result<Count> {
    let mut emulated = Command::new("chroot");
    let said = capture(emulated.arg(root).args(["/emulator", &format!("/bin/{program}"), "--version"]))?;
    if said.trim() != format!("{program} {}", env!("CARGO_PKG_VERSION")) {
        bail!("{program} says `{}` as its version", said.trim());
    }
    println!("{}", said.trim());
    Ok(Count { passed: 1, ..Count::default() })
}
