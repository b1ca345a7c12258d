//! Images without Docker: what each one contains, and how it becomes an archive that containerd imports.

mod archive;
mod contents;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::command::{release_build, run};
use archive::{Image, Layout};
use contents::Contents;

pub(crate) use archive::MANIFEST;

/// What the node's pods pause on, and a shell for tests.
pub const BUSYBOX: &str = "s3-csi.test/busybox:dev";
pub const PAUSE: &str = BUSYBOX;
/// The controller and the node service.
pub const DRIVER: &str = "s3-csi.test/driver:dev";
/// What runs in a Mountpoint Pod.
pub const MOUNTER: &str = "s3-csi.test/mounter:dev";
/// The programs of test pods, ours.
pub const TESTPOD: &str = "s3-csi.test/testpod:dev";

/// The user of images whose program needs no privilege.
const NOBODY: &str = "65534:65534";

/// An image that has been built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    pub reference: &'static str,
    pub archive: PathBuf,
    pub digest: String,
}

/// What can be built, by short name.
pub const NAMES: &[&str] = &["busybox", "driver", "mounter", "testpod"];

/// (package, program) that images are made of.
const PROGRAMS: &[(&str, &str)] = &[
    ("controller", "s3-csi-controller"),
    ("mounter", "s3-csi-mounter"),
    ("mountpoint", "s3-csi-mountpoint"),
    ("node", "s3-csi-node"),
    ("xtask", "testpod"),
];

/// Builds the release programs and writes every image's archive into the cache.
pub fn build_all(cache: &Cache) -> Result<Vec<Built>> {
    let programs = build_programs(cache)?;
    NAMES.iter().map(|name| write(&cache.images(), name, &programs)).collect()
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

/// What a registry would have of an image that was built.
pub(crate) fn layout(cache: &Cache, name: &str) -> Result<Layout> {
    Layout::read(&archive_path(&cache.images(), name))
}

/// Writes the files of one image into a folder: the Dockerfile's way to the same content.
pub fn unpack(cache: &Cache, name: &str, folder: &Path) -> Result<()> {
    image(name, &build_programs(cache)?)?.contents.unpack(folder)
}

fn write(folder: &Path, name: &str, programs: &Path) -> Result<Built> {
    let image = image(name, programs)?;
    let archive = archive_path(folder, name);
    let digest = image.write(&archive).with_context(|| format!("cannot write {}", archive.display()))?;
    Ok(Built { reference: image.reference, archive, digest })
}

fn archive_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.tar"))
}

fn image(name: &str, programs: &Path) -> Result<Image> {
    let mut contents = Contents::default();
    match name {
        "busybox" => {
            contents.system_files()?;
            contents.busybox()?;
            Ok(Image {
                reference: BUSYBOX,
                contents,
                command: &["/bin/busybox", "sleep", "infinity"],
                user: "0:0",
            })
        }
        "driver" => {
            contents.system_files()?;
            for program in ["s3-csi-controller", "s3-csi-node"] {
                contents.program(&programs.join(program), &format!("bin/{program}"))?;
            }
            Ok(Image { reference: DRIVER, contents, command: &["/bin/s3-csi-controller"], user: NOBODY })
        }
        "mounter" => {
            contents.system_files()?;
            for program in ["s3-csi-mounter", "s3-csi-mountpoint"] {
                contents.program(&programs.join(program), &format!("bin/{program}"))?;
            }
            Ok(Image { reference: MOUNTER, contents, command: &["/bin/s3-csi-mounter"], user: NOBODY })
        }
        "testpod" => {
            contents.system_files()?;
            contents.program(&programs.join("testpod"), "bin/testpod")?;
            Ok(Image { reference: TESTPOD, contents, command: &["/bin/testpod"], user: NOBODY })
        }
        _ => anyhow::bail!("there is no image `{name}`; there are: {}", NAMES.join(", ")),
    }
}

/// Builds the release programs and says in which folder they are.
pub fn build_programs(cache: &Cache) -> Result<PathBuf> {
    let mut build = release_build(cache);
    for (package, program) in PROGRAMS {
        build.args(["--package", package, "--bin", program]);
    }
    run(&mut build)?;
    Ok(cache.target().join("release"))
}
