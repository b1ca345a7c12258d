//! Mounts on a real node.

use anyhow::{Result, ensure};

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Profile;

/// Each run has a plain pod, a cold mount, a second workload, a detach, a forced detach and a mount through a warm pod.
const REPETITIONS: usize = 20;
/// Plain pods and mounts through a warm pod.
const WARM: &str = "warm";

/// `only` is the one part that can be measured by itself, and nothing else is.
pub(super) fn measure(cache: &Cache, repetitions: Option<usize>, only: Option<&str>) -> Result<Figures> {
    ensure!(only.is_none_or(|only| only == WARM), "--only: `mount` has only the part `{WARM}`");
    let repetitions = repetitions.unwrap_or(REPETITIONS).to_string();
    let mut figures = Figures::default();
    let arguments: Vec<&str> = ["mount", &repetitions].into_iter().chain(only).collect();
    for (key, samples) in inside::measure(cache, Profile::Node, &arguments, 1)? {
        let reference = (key == "cold_container_started_p50_ms").then_some("plain_container_started_p50_ms");
        figures.add_against(&key, samples, reference);
    }
    Ok(figures)
}
