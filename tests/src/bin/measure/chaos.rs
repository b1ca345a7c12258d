//! The kill matrix, in the order of a seed and for so many minutes.

use std::time::Duration;

use s3_csi_tests::chaos::{self, matrix};

use crate::Samples;

pub(crate) async fn measure(seed: u64, minutes: u64) -> Samples {
    // The first node runs the control plane.
    let node = s3_csi_tests::cluster().nodes().unwrap()[1];
    let report = chaos::run(node, matrix::faults(seed), Duration::from_mins(minutes)).await;
    let count = |number: usize| vec![number as f64];
    Samples::from([
        ("planned", count(report.planned)),
        ("faults", count(report.faults)),
        ("too_late", count(report.too_late)),
        ("acknowledged_bytes", count(report.acknowledged_bytes)),
        ("acknowledged_bytes_lost", count(report.acknowledged_bytes_lost)),
        ("orphans", count(report.orphans)),
        ("stuck_workloads", count(report.stuck_workloads)),
        ("reader_errors_outside_documented", count(report.reader_errors_outside_documented)),
        ("writer_errors_outside_documented", count(report.writer_errors_outside_documented)),
    ])
}
