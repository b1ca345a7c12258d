//! A part of the kill matrix; `cargo xtask bench chaos` runs all of it.

use std::time::Duration;

use s3_csi_tests::chaos::run;
use s3_csi_tests::chaos::selection::selection;

/// Never reached: the number of faults ends it.
const LIMIT: Duration = Duration::from_mins(30);

#[tokio::test]
async fn killed_and_stopped_parts_lose_no_acknowledged_byte_and_leave_nothing() {
    let node = s3_csi_tests::cluster().nodes().unwrap()[1];
    let report = run(node, selection(), LIMIT, |_| {}).await;
    assert_eq!(report.details, [""; 0], "{report:?}");
    // Each fault hit its part, unless that had ended with its workload.
    assert_eq!(report.faults + report.too_late, report.planned, "{report:?}");
    assert!(report.acknowledged_bytes > 0, "{report:?}");
}
