//! Every part is killed and stopped while volumes are used.

use std::time::Duration;

use anyhow::Result;

use super::figures::Figures;
use super::inside::{self, Samples};
use crate::cache::Cache;
use crate::cluster::Plan;

/// The second node can lose its power; the first runs the control plane.
const NODES: u8 = 2;
/// For the end of the last fault and the check of everything that was written.
const TO_END: Duration = Duration::from_mins(30);

/// The faults of so many seeds, beginning with this one. `only` are words that describe the faults.
pub(super) fn measure(
    cache: &Cache,
    seed: u64,
    minutes: u64,
    repetitions: usize,
    only: Option<&str>,
) -> Result<Figures> {
    let numbers = [seed.to_string(), minutes.to_string(), repetitions.to_string()];
    let [seed, minutes_text, repetitions] = numbers.each_ref().map(String::as_str);
    let arguments = ["chaos", seed, minutes_text, repetitions, only.unwrap_or_default()];
    let plan = Plan { nodes: NODES, ..Plan::default() };
    let limit = Duration::from_mins(minutes) + TO_END;
    let mut figures = Figures::default();
    for (key, samples) in inside::measure_on(cache, plan, &arguments, 1, limit, found)? {
        figures.add(&key, samples);
    }
    Ok(figures)
}

/// Whether anything is other than it should be.
fn found(samples: &Samples) -> bool {
    samples.get("findings").is_none_or(|findings| findings.iter().any(|number| *number > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_findings_leaves_no_evidence() {
        let samples = |number| Samples::from([("findings".to_owned(), vec![number])]);
        assert!(!found(&samples(0.0)) && found(&samples(1.0)) && found(&Samples::new()));
    }
}
