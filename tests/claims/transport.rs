//! The way to the S3 server: certificates of a private authority, buckets as hosts, and what can be seen on it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use jiff::Timestamp;
use kube::ResourceExt as _;
use s3_csi_tests::claims::{Tenant, handle};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::relay::Relay;
use serde_json::json;
use xtask::s3::{ALICE, ENDPOINT, ENDPOINT_TLS};

const SERVER: &str = "s3.test:80";
/// What a thief of a request would rather have deleted, with its digests.
const OTHER_PAYLOAD: &str = "<Delete><Object><Key>precious</Key></Object></Delete>";
const OTHER_MD5: &str = "LZE/dhuhPcyW717s+hrAHw==";
const OTHER_SHA256: &str = "a83ec1ff5379a02488368215f054d31f591b5094f0d4d14578822f7fcfb95854";

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
        assert_eq!(certificate_expires(&controller).is_some_and(|end| end > Timestamp::now()), name == "tls");
        tenant.delete(name).await;
        tenant.volume_gone(&volume.name_any()).await;
        assert!(!tenant.has_bucket(&handle(&volume)), "{name}");
        assert!(controller.stop().success());
    }
}

/// What the metric says, if there is one.
fn certificate_expires(controller: &Controller) -> Option<Timestamp> {
    let metrics = controller.metrics();
    let name = "s3_csi_controller_s3_certificate_expires_timestamp_seconds";
    let (_, value) = metrics.lines().find(|line| line.starts_with(name))?.rsplit_once(' ')?;
    Some(Timestamp::from_second(value.parse().unwrap()).unwrap())
}

#[tokio::test]
async fn through_a_proxy_unless_the_endpoint_is_excepted() {
    let _running = controller::none().await;
    let tenant = Tenant::set("proxy", ALICE).await;
    tenant.class("plain", json!({}), json!({})).await;
    let authority = format!("--ca-bundle={}", tenant.here.cluster.authority().display());
    let (tls, plain) = (format!("--endpoint-url={ENDPOINT_TLS}"), format!("--endpoint-url={ENDPOINT}"));
    for (name, endpoint, exception, proxied) in [
        ("proxied", &tls, "--s3-no-proxy=other.test", true),
        ("excepted", &tls, "--s3-no-proxy=.s3.test,s3.test", false),
        // Like the mount process, which has no proxy for plain HTTP.
        ("plain", &plain, "--s3-no-proxy=", false),
    ] {
        let relay = Relay::to(None);
        let proxy = format!("--s3-https-proxy={}", relay.url());
        let arguments = [endpoint.as_str(), &authority, &proxy, exception];
        let controller = Controller::start(&tenant.here.client, &arguments).await;
        tenant.claim(name, "plain").await;
        tenant.bound(name).await;
        assert_eq!(relay.heard().contains("CONNECT s3.test:443"), proxied, "{name}");
        assert!(controller.stop().success());
    }
}

#[tokio::test]
async fn a_server_that_is_not_trusted_or_not_there_is_named() {
    let _running = controller::none().await;
    let tenant = Tenant::set("untrusted", ALICE).await;
    tenant.class("plain", json!({}), json!({})).await;
    for (name, endpoint, words) in
        [("stranger", ENDPOINT_TLS, "is not trusted"), ("nobody", "http://s3.test:9", "cannot connect to")]
    {
        let endpoint = format!("--endpoint-url={endpoint}");
        let controller = Controller::start(&tenant.here.client, &[&endpoint]).await;
        tenant.claim(name, "plain").await;
        tenant.has_event(name, &["ProvisioningFailed:", words]).await;
        tenant.has_no_finalizer(name).await;
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
    tenant.has_event("data", &["ProvisioningFailed:", "is not trusted"]).await;
    std::fs::copy(tenant.here.cluster.authority(), &file).unwrap();
    tenant.bound("data").await;
    drop(controller);
}

/// The first request of this kind that the relay heard: its head and its payload.
fn first(spoken: &str, line: &str) -> (String, String) {
    let (head, rest) = spoken[spoken.find(line).unwrap()..].split_once("\r\n\r\n").unwrap();
    let length: usize = header(head, "content-length").parse().unwrap();
    (head.to_owned(), rest[..length].to_owned())
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Sends it as it is; returns the status.
fn send(head: &str, payload: &str) -> String {
    let mut line = TcpStream::connect(SERVER).unwrap();
    write!(line, "{head}\r\nconnection: close\r\n\r\n{payload}").unwrap();
    let mut answer = String::new();
    line.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_request_that_is_seen_carries_no_key_and_cannot_be_changed() {
    let _running = controller::none().await;
    let tenant = Tenant::set("wire", ALICE).await;
    let (relay, bucket) = (Relay::to(Some(SERVER)), "seen-on-the-wire");
    let endpoint = format!("--endpoint-url={}", relay.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint]).await;
    tenant.server.create_bucket(bucket).unwrap();
    tenant.server.put(bucket, "precious", b"x").unwrap();
    let token = "token-of-a-session";
    tenant.keys("keys", ALICE).await;
    let mut parameters = tenant.provisioner_secret("keys");
    parameters["bucketName"] = json!(bucket);
    parameters["deletionPolicy"] = json!("delete-objects");
    tenant.class("plain", json!({"bucketNamePrefix": "wire"}), json!({})).await;
    tenant.class("prefixed", parameters, json!({})).await;
    for class in ["plain", "prefixed"] {
        tenant.claim(class, class).await;
        let volume = tenant.bound(class).await;
        if class == "prefixed" {
            tenant.server.put(bucket, &format!("{}/file", volume.name_any()), b"x").unwrap();
        }
        tenant.delete(class).await;
        tenant.volume_gone(&volume.name_any()).await;
    }
    assert_eq!(tenant.server.objects(bucket, "").unwrap(), ["precious"]);
    // The server knows of no such session; what matters is how it was asked.
    let session = json!({
        "access_key_id": ALICE.access_key, "secret_access_key": ALICE.secret_key, "session_token": token,
    });
    tenant.secret("session", session).await;
    let parameters = tenant.provisioner_secret("session");
    tenant.class("session", parameters, json!({})).await;
    tenant.claim("session", "session").await;
    tenant.has_event("session", &["ProvisioningFailed:", "InvalidToken"]).await;

    let spoken = relay.heard();
    let requests: Vec<&str> = spoken.lines().filter(|line| line.ends_with(" HTTP/1.1")).collect();
    for method in ["PUT /wire-", "DELETE /wire-", "GET /", "POST /"] {
        assert!(requests.iter().any(|line| line.contains(method)), "{method}: {requests:?}");
    }
    for line in &requests {
        assert!(!line.contains("X-Amz-") && !line.contains(token), "{line}");
    }
    let (head, payload) = first(&spoken, &format!("POST /{bucket}/?delete"));
    assert!(header(&head, "authorization").contains("host;x-amz-content-sha256;x-amz-date"));
    let hashes: Vec<&str> =
        spoken.lines().filter_map(|line| line.strip_prefix("x-amz-content-sha256: ")).collect();
    assert_eq!(hashes.len(), requests.len());
    assert!(!hashes.contains(&"UNSIGNED-PAYLOAD"), "the payload of a request can be changed");
    assert!(spoken.contains(&format!("x-amz-security-token: {token}")), "{spoken}");
    assert!(spoken.contains("x-amz-content-sha256;x-amz-date;x-amz-security-token"), "and it is signed");

    assert_eq!(send(&head, &payload), "200", "as it was, it is understood");
    let length = format!("content-length: {}", payload.len());
    let changed = head
        .replace(&length, &format!("content-length: {}", OTHER_PAYLOAD.len()))
        .replace(header(&head, "content-md5"), OTHER_MD5);
    let changed_hash = changed.replace(header(&head, "x-amz-content-sha256"), OTHER_SHA256);
    for thief in [changed, changed_hash] {
        let status = send(&thief, OTHER_PAYLOAD);
        assert!(status.starts_with('4'), "{status}");
    }
    assert_eq!(tenant.server.get(bucket, "precious").unwrap(), b"x");
    drop(controller);
}
