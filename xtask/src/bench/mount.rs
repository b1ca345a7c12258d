//! Mounts on a real node.

use anyhow::Result;

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Profile;

/// Each run has a plain pod, a cold mount, a second workload, a detach, a forced detach and a mount through a warm pod.
const REPETITIONS: usize = 20;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
    let repetitions = repetitions.unwrap_or(REPETITIONS).to_string();
    let mut figures = Figures::default();
    for (key, samples) in inside::measure(cache, Profile::Node, &["mount", &repetitions], 1)? {
        let reference = (key == "cold_container_started_p50_ms").then_some("plain_container_started_p50_ms");
        figures.add_against(&key, samples, reference);
    }
    Ok(figures)
}
