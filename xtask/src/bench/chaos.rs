//! Every part is killed and stopped while volumes are used.

use std::time::Duration;

use anyhow::Result;

use super::figures::Figures;
use super::inside;
use crate::cache::Cache;
use crate::cluster::Plan;

/// The second node can lose its power; the first runs the control plane.
const NODES: u8 = 2;
/// For the end of the last fault and the check of everything that was written.
const TO_END: Duration = Duration::from_mins(30);

pub(super) fn measure(cache: &Cache, seed: u64, minutes: u64) -> Result<Figures> {
    let arguments = ["chaos".to_owned(), seed.to_string(), minutes.to_string()];
    let arguments = arguments.each_ref().map(String::as_str);
    let plan = Plan { nodes: NODES, ..Plan::default() };
    let limit = Duration::from_mins(minutes) + TO_END;
    let mut figures = Figures::default();
    for (key, samples) in inside::measure_on(cache, plan, &arguments, 1, limit)? {
        figures.add(&key, samples);
    }
    Ok(figures)
}
