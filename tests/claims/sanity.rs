//! The CSI controller service as csi-sanity sees it.

use std::path::Path;

use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::sanity;
use xtask::s3::ALICE;

/// What the controller service does not offer, and says so.
const SKIPPED: &[&str] = &[];

#[tokio::test]
async fn the_controller_service_passes() {
    let _running = controller::none().await;
    let tenant = Tenant::set("sanity", ALICE).await;
    let socket = "/run/csi-controller.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}"), "--leader-election=false"];
    let controller = Controller::start(&tenant.here.client, &arguments).await;
    let before = tenant.buckets();
    let report = sanity::run(Path::new(socket), None, &["Node Service"], &[]);
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    let ours = report.skipped.iter().filter(|name| !name.contains("Node Service")).collect::<Vec<_>>();
    assert_eq!(ours, SKIPPED, "what is skipped is what we do not offer");
    assert!(report.passed.len() > 20, "{:?}", report.passed);
    assert_eq!(tenant.buckets(), before, "every volume was deleted");
    drop(controller);
}
