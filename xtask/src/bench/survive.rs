//! Programs while mount processes die.

use anyhow::Result;

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Profile;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
    let mut figures = Figures::default();
    for (key, samples) in inside::measure(cache, Profile::Kernel, &["survive"], repetitions.unwrap_or(1))? {
        figures.add(&key, samples);
    }
    Ok(figures)
}
