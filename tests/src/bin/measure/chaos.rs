//! The kill matrix, in the order of a seed and for so many minutes.

use std::time::Duration;

use s3_csi_tests::chaos::{self, Report, matrix};

use crate::{Samples, show};

/// Each repetition has the next seed, and with it other moments. `only` are words that describe the faults.
pub(crate) async fn measure(seed: u64, minutes: u64, repetitions: u64, only: &str) -> Samples {
    let mut faults: Vec<_> = (seed..seed + repetitions).flat_map(matrix::faults).collect();
    faults.retain(|fault| fault.is_described_by(only));
    assert!(
        !faults.is_empty(),
        "no fault is described by `{only}`: use words as in `{}`",
        matrix::faults(seed)[0]
    );
    // The first node runs the control plane.
    let node = s3_csi_tests::cluster().nodes().unwrap()[1];
    let limit = Duration::from_mins(minutes);
    samples(&chaos::run(node, faults, limit, |report| show(&samples(report))).await)
}

fn samples(report: &Report) -> Samples {
    let count = |number: usize| vec![number as f64];
    Samples::from([
        ("planned", count(report.planned)),
        ("faults", count(report.faults)),
        ("too_late", count(report.too_late)),
        ("acknowledged_bytes", count(report.acknowledged_bytes)),
        ("acknowledged_bytes_lost", count(report.acknowledged_bytes_lost)),
        ("orphans", count(report.orphans)),
        ("unfinished_uploads", count(report.unfinished_uploads)),
        ("stuck_workloads", count(report.stuck_workloads)),
        ("reader_errors_outside_documented", count(report.reader_errors_outside_documented)),
        ("writer_errors_outside_documented", count(report.writer_errors_outside_documented)),
        ("findings", count(report.details.len())),
    ])
}
