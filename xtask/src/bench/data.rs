//! Files through the mount, compared with plain requests for the same bytes.

use std::path::Path;

use anyhow::{Context, Result};

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Profile;

/// `mount_s3` is another program that serves buckets, measured in the same run. `only` are rows and parts, with commas in between, and nothing else is
/// measured.
pub(super) fn measure(
    cache: &Cache,
    repetitions: Option<usize>,
    mount_s3: Option<&Path>,
    only: Option<&str>,
) -> Result<Figures> {
    // Absolute, because the benchmark runs in another directory.
    let program = mount_s3.map(Path::canonicalize).transpose().context("--mount-s3: no such file")?;
    let folder = match &program {
        Some(program) => {
            let folder = program.parent().and_then(Path::to_str).filter(|_| program.ends_with("mount-s3"));
            folder.context("--mount-s3 must be the path of a program named mount-s3")?
        }
        None => "",
    };
    let arguments = ["data", folder, only.unwrap_or_default()];
    let samples = inside::measure(cache, Profile::Kernel, &arguments, repetitions.unwrap_or(1))?;
    let mut figures = Figures::default();
    for (key, samples) in samples {
        figures.add(&key, samples);
    }
    Ok(figures)
}
