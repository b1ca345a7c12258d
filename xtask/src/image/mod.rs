//! Images without Docker: what each one contains, and how it becomes an archive that containerd imports.

mod archive;
mod contents;
pub mod next;
pub mod platforms;
pub mod released;
pub mod suite;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::cargo;
use crate::command::run;
use crate::cross::Cross;
use crate::progress::step;
use archive::{Image, Layout};
use contents::Contents;

pub(crate) use archive::{MANIFEST, digest};

/// The pause image of the node's pods, and a shell for tests.
pub const BUSYBOX: &str = "s3-csi.test/busybox:dev";
pub const PAUSE: &str = BUSYBOX;
/// This program, for pods of tests that read an object.
pub const TESTPOD: &str = "s3-csi.test/testpod:dev";

/// The images. `driver` has the controller and the node service, `mounter` the programs of a Mountpoint Pod.
pub const NAMES: &[&str] = &["busybox", "driver", "mounter", "testpod"];
/// Those that are shipped, which contain our version.
const OURS: &[&str] = &["driver", "mounter"];
const TAG: &str = "dev";

/// The user of images whose program needs no privilege.
const NOBODY: &str = "65534:65534";

/// An image that has been built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    pub reference: String,
    pub archive: PathBuf,
    pub digest: String,
}

/// Builds the release programs and writes every image's archive into the cache.
pub fn build_all(cache: &Cache) -> Result<Vec<Built>> {
    let programs = cargo::shipped(cache)?;
    step("images", || NAMES.iter().map(|name| write(&cache.images(), name, &programs)).collect())
}

/// Writes the archive of one image into a folder, with the programs of another.
pub fn write(folder: &Path, name: &str, programs: &Path) -> Result<Built> {
    let image = image(name, TAG, &|program| programs.join(program))?;
    let archive = archive_path(folder, name);
    let digest = image.write(&archive).with_context(|| format!("cannot write {}", archive.display()))?;
    Ok(Built { reference: image.reference, archive, digest })
}

/// The archives that [`build_all`] writes.
pub fn archives(cache: &Cache) -> Result<Vec<PathBuf>> {
    NAMES
        .iter()
        .map(|name| archive_path(&cache.images(), name))
        .map(|path| {
            path.exists().then_some(path.clone()).with_context(|| format!("{} is missing", path.display()))
        })
        .collect()
}

/// Busybox, as users pull it. It differs from the imported image: once the kubelet has pulled an image, it no longer treats
/// it as preloaded under another name, and pods that never pull would not start.
const PULLED: &str = "busybox-pulled";

/// Its objects in the node's registry.
pub(crate) fn pulled(cache: &Cache) -> Result<Layout> {
    Layout::read(&write(&cache.images(), PULLED, Path::new(""))?.archive)
}

/// The configuration and the layer of an archive.
pub fn parts(archive: &Path) -> Result<(Value, Vec<u8>)> {
    let Layout { manifest, blobs, .. } = Layout::read(archive)?;
    let manifest: Value = serde_json::from_slice(&manifest)?;
    let blob = |descriptor: &Value| {
        let found = blobs.iter().find(|(digest, _)| descriptor["digest"] == digest.as_str());
        found.map(|(_, content)| content).with_context(|| format!("{descriptor} is missing"))
    };
    Ok((serde_json::from_slice(blob(&manifest["config"])?)?, blob(&manifest["layers"][0])?.clone()))
}

fn archive_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.tar"))
}

/// With the programs of this machine's architecture.
fn image(name: &str, tag: &str, find: &dyn Fn(&str) -> PathBuf) -> Result<Image> {
    image_with(name, tag, find, None)
}

fn image_with(name: &str, tag: &str, find: &dyn Fn(&str) -> PathBuf, cross: Option<&Cross>) -> Result<Image> {
    let mut contents = Contents::default();
    contents.system_files()?;
    let mut programs = |programs: &[&str]| {
        programs.iter().try_for_each(|name| contents.program(&find(name), &format!("bin/{name}"), cross))
    };
    let (command, user): (&'static [&'static str], _) = match name {
        "busybox" => {
            contents.busybox()?;
            (&["/bin/busybox", "sleep", "infinity"], "0:0")
        }
        PULLED => {
            contents.busybox()?;
            (&["/bin/busybox"], "0:0")
        }
        "driver" => {
            // The plugin checks the endpoint from here: `kubectl s3 doctor`.
            programs(&["s3-csi-controller", "s3-csi-node", "kubectl-s3"])?;
            (&["/bin/s3-csi-controller"], NOBODY)
        }
        "mounter" => {
            programs(&["s3-csi-mounter", "s3-csi-mountpoint"])?;
            (&["/bin/s3-csi-mounter"], NOBODY)
        }
        "testpod" => {
            // Most of an unoptimised program is debug information.
            let stripped = tempfile::NamedTempFile::new()?;
            run(Command::new("strip").arg("-o").arg(stripped.path()).arg(std::env::current_exe()?))?;
            contents.program(stripped.path(), "bin/xtask", None)?;
            (&["/bin/xtask", "testpod"], NOBODY)
        }
        _ => anyhow::bail!("unknown image `{name}`: use one of {}", NAMES.join(", ")),
    };
    let architecture = cross.map_or_else(Architecture::of_this_machine, |_| Ok(Architecture::Arm64))?;
    Ok(Image { reference: format!("s3-csi.test/{name}:{tag}"), architecture, contents, command, user })
}
