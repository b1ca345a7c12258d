//! The manifests that users are given.

use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller;
use xtask::command::run;
use xtask::s3::ALICE;

fn apply(tenant: &Tenant, manifest: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifest).unwrap();
    let mut kubectl = tenant.here.cluster.kubectl().unwrap();
    kubectl.args(["--namespace", &tenant.here.namespace, "apply", "--filename"]);
    run(kubectl.arg(file.path())).unwrap();
}

#[tokio::test]
async fn every_example_is_bound() {
    let tenant = Tenant::set("examples", ALICE).await;
    let _controller = controller::shared(&tenant.here.client).await;
    tenant.server.create_bucket("shared-bucket").unwrap();
    let tenants = include_str!("../../examples/dynamic-tenant-credentials.yaml")
        .replace("AKIAEXAMPLE", ALICE.access_key)
        .replace("secret_access_key: example", &format!("secret_access_key: {}", ALICE.secret_key));
    for (manifest, claim) in [
        (include_str!("../../examples/dynamic-bucket-per-claim.yaml"), "data"),
        (include_str!("../../examples/dynamic-prefix-per-claim.yaml"), "scratch"),
        (&tenants, "ours"),
    ] {
        apply(&tenant, manifest);
        let volume = tenant.bound(claim).await;
        assert!(handle(&volume).contains("csi-s3-"), "{}", handle(&volume));
    }
}
