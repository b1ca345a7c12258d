//! The CSI controller service as csi-sanity sees it.

use std::path::Path;

use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::node::{Kubelet, NodeProgram};
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
    // csi-sanity asks the node, too, before it deletes a volume.
    let kubelet = Kubelet::default();
    let node = NodeProgram::start(&tenant.here.client, "sanity", &kubelet, &["--registration=off"]).await;
    let before = tenant.buckets();
    let target = kubelet.target("0b8de1f7-5d0e-4b43-8f4c-3b1c2f0d9a77", "volume");
    let report = sanity::run(&kubelet.csi_socket(), Path::new(socket), &target, &["Node Service"]);
    assert_eq!(report.failed, [""; 0]);
    let ours = report.skipped.iter().filter(|name| !name.contains("Node Service")).collect::<Vec<_>>();
    assert_eq!(ours, SKIPPED, "what is skipped is what we do not offer");
    assert!(report.passed.len() > 20, "{:?}", report.passed);
    assert_eq!(tenant.buckets(), before, "every volume was deleted");
    drop((controller, node));
}
