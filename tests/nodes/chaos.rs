//! A part of the kill matrix; `cargo xtask bench chaos` runs all of it.

use std::time::Duration;

use s3_csi_tests::chaos::matrix::{How, Part, faults};
use s3_csi_tests::chaos::run;

/// With this order, the first faults hit each program of the driver, the kubelet and the S3 server at most moments.
const SEED: u64 = 463;
/// About 15 s each.
const FAULTS: usize = 6;
/// Never reached: the number of faults ends it.
const LIMIT: Duration = Duration::from_mins(30);

/// Only kills, because a stop lasts 20 s; power cuts have stories of their own.
#[tokio::test]
async fn killed_parts_lose_no_acknowledged_byte_and_leave_nothing() {
    let node = s3_csi_tests::cluster().nodes().unwrap()[1];
    let mut chosen = faults(SEED);
    chosen.retain(|fault| fault.how == How::Kill && fault.part != Part::WholeNode);
    let mut seen = Vec::new();
    chosen.retain(|fault| {
        let is_first = !seen.contains(&fault.part);
        seen.push(fault.part);
        is_first
    });
    let report = run(node, chosen.into_iter().take(FAULTS), LIMIT).await;
    assert_eq!(report.details, [""; 0], "{report:?}");
    assert!(report.faults > FAULTS / 2 && report.acknowledged_bytes > 0, "{report:?}");
}
