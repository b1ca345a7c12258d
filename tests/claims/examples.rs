//! The manifests that users are given.

use std::path::Path;

use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller;
use xtask::command::run;
use xtask::s3::ALICE;

fn apply(tenant: &Tenant, example: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut kubectl = tenant.here.cluster.kubectl().unwrap();
    kubectl.args(["--namespace", &tenant.here.namespace, "apply", "--filename"]);
    run(kubectl.arg(folder.join(format!("{example}.yaml")))).unwrap();
}

#[tokio::test]
async fn every_example_is_bound() {
    let tenant = Tenant::set("examples", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.server.create_bucket("shared-bucket").unwrap();
    for (example, claim) in [
        ("dynamic-bucket-per-claim", "data"),
        ("dynamic-prefix-per-claim", "scratch"),
        ("dynamic-tenant-credentials", "ours"),
    ] {
        apply(&tenant, example);
        let volume = tenant.bound(claim).await;
        assert!(handle(&volume).contains("csi-s3-"), "{}", handle(&volume));
    }
}
