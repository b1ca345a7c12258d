//! The controller on a real API server with simulated nodes.

use anyhow::Result;

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Profile;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
    let mut figures = Figures::default();
    for (key, samples) in inside::measure(cache, Profile::Api, &["controller"], repetitions.unwrap_or(1))? {
        let reference = (key == "burst_writes_per_s").then_some("raw_writes_per_s");
        figures.add_against(&key, samples, reference);
    }
    Ok(figures)
}
