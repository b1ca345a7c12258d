//! The way to the S3 server: certificates of a private authority, and buckets as hosts.

use kube::ResourceExt as _;
use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller::{self, Controller};
use serde_json::json;
use xtask::s3::{ALICE, ENDPOINT, ENDPOINT_TLS};

#[tokio::test]
async fn tls_with_a_private_authority_and_virtual_hosts() {
    let _running = controller::none().await;
    let tenant = Tenant::set("transport", ALICE).await;
    tenant.class("plain", json!({}), json!({})).await;
    let authority = format!("--ca-bundle={}", tenant.here.cluster.authority().display());
    let (tls, plain) = (format!("--endpoint-url={ENDPOINT_TLS}"), format!("--endpoint-url={ENDPOINT}"));
    for (name, arguments) in [
        ("tls", vec![tls.as_str(), &authority]),
        ("virtual", vec![plain.as_str(), "--s3-addressing=virtual"]),
    ] {
        let controller = Controller::start(&tenant.here.client, &arguments).await;
        tenant.claim(name, "plain").await;
        let volume = tenant.bound(name).await;
        assert!(tenant.has_bucket(&handle(&volume)), "{name}");
        tenant.delete(name).await;
        tenant.volume_gone(&volume.name_any()).await;
        assert!(!tenant.has_bucket(&handle(&volume)), "{name}");
        assert!(controller.stop().success());
    }
}

#[tokio::test]
async fn a_server_that_is_not_trusted_or_not_there_is_named() {
    let _running = controller::none().await;
    let tenant = Tenant::set("untrusted", ALICE).await;
    tenant.class("plain", json!({}), json!({})).await;
    for (name, endpoint, words) in
        [("stranger", ENDPOINT_TLS, "is not trusted"), ("nobody", "http://s3.test:9", "cannot be reached")]
    {
        let endpoint = format!("--endpoint-url={endpoint}");
        let controller = Controller::start(&tenant.here.client, &[&endpoint]).await;
        tenant.claim(name, "plain").await;
        tenant.is_told(name, &["ProvisioningFailed:", words]).await;
        tenant.unmarked(name).await;
        tenant.delete(name).await;
        tenant.claim_gone(name).await;
        assert!(controller.stop().success());
    }
}

#[tokio::test]
async fn authorities_may_come_later() {
    let _running = controller::none().await;
    let tenant = Tenant::set("authorities", ALICE).await;
    tenant.class("plain", json!({}), json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca-bundle.crt");
    let arguments = [format!("--endpoint-url={ENDPOINT_TLS}"), format!("--ca-bundle={}", file.display())];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let controller = Controller::start(&tenant.here.client, &arguments).await;
    tenant.claim("data", "plain").await;
    tenant.is_told("data", &["ProvisioningFailed:", "is not trusted"]).await;
    std::fs::copy(tenant.here.cluster.authority(), &file).unwrap();
    tenant.bound("data").await;
    drop(controller);
}
