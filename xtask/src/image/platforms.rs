//! The images that are shipped, for other architectures than this machine's, or for several in one archive.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::archive::{Image, write};
use super::{Built, OURS, TAG, archive_path, image_with};
use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::cargo;
use crate::cross::Cross;
use crate::progress::step;

/// The release programs of an architecture.
struct Programs {
    folder: PathBuf,
    /// What compiled them, unless they are this machine's own.
    cross: Option<Cross>,
}

impl Programs {
    fn build(cache: &Cache, architecture: Architecture) -> Result<Self> {
        if architecture == Architecture::of_this_machine()? {
            return Ok(Self { folder: cargo::shipped(cache)?, cross: None });
        }
        let cross = Cross::ensure(cache, architecture)?;
        Ok(Self { folder: cargo::shipped_with(cache, &cross)?, cross: Some(cross) })
    }

    fn image(&self, name: &str) -> Result<Image> {
        if self.cross.is_some() && !OURS.contains(&name) {
            bail!("no image `{name}` of another architecture: use one of {}", OURS.join(", "));
        }
        image_with(name, TAG, &|program| self.folder.join(program), self.cross.as_ref())
    }
}

/// Builds the release programs for these architectures, and writes an archive of each image into the cache.
pub fn build(cache: &Cache, architectures: &[Architecture]) -> Result<Vec<Built>> {
    let mut architectures = architectures.to_vec();
    architectures.sort_unstable();
    architectures.dedup();
    let build = |architecture: &Architecture| Programs::build(cache, *architecture);
    let programs = architectures.iter().map(build).collect::<Result<Vec<_>>>()?;
    let suffix: String = architectures.iter().flat_map(|one| ["-", one.name()]).collect();
    step("images", || {
        let pack = |name: &&str| {
            let images = programs.iter().map(|programs| programs.image(name)).collect::<Result<Vec<_>>>()?;
            let archive = archive_path(&cache.images(), &format!("{name}{suffix}"));
            let digest =
                write(&images, &archive).with_context(|| format!("cannot write {}", archive.display()))?;
            Ok(Built { reference: images[0].reference.clone(), archive, digest })
        };
        OURS.iter().map(pack).collect()
    })
}

/// Writes the files of one image into a folder, for the Dockerfile.
pub fn unpack(cache: &Cache, name: &str, architectures: &[Architecture], folder: &Path) -> Result<()> {
    let architecture = match architectures {
        [] => Architecture::of_this_machine()?,
        [architecture] => *architecture,
        _ => bail!("a folder has the files of one architecture"),
    };
    Programs::build(cache, architecture)?.image(name)?.contents.unpack(folder)
}
