//! Which hosts the mount process connects to, and how.

use std::fs;
use std::path::Path;
use std::process::Command;

use contract::names::AUTHORITY_IN_POD;
use mounter::handover::{Code, MountRequest};
use s3_csi_tests::cluster;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, with};
use s3_csi_tests::relay::Relay;
use xtask::command::{capture, run};
use xtask::s3::{ALICE, ENDPOINT_TLS};

const SERVER: Option<&str> = Some("s3.test:80");

fn without(mut request: MountRequest, arguments: &[&str]) -> MountRequest {
    request.arguments.retain(|argument| !arguments.contains(&argument.as_str()));
    request
}

/// Packets to the cloud's metadata address vanish, and are counted, as long as this network lives.
#[test]
fn the_clouds_metadata_address_is_never_asked() {
    const METADATA: &str = "169.254.169.254";
    bucket(ALICE, "no-metadata");
    run(Command::new("iptables").args(["-w", "-I", "OUTPUT", "-d", METADATA, "-j", "DROP"])).unwrap();
    run(Command::new("ip").args(["route", "replace", METADATA, "dev", "lo"])).unwrap();
    let packets = || {
        let rules = capture(Command::new("iptables").args(["-w", "-nvxL", "OUTPUT"])).unwrap();
        let rule = rules.lines().find(|line| line.contains(METADATA)).unwrap();
        rule.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "no-metadata", &[]);
    assert_eq!(served.list("").unwrap(), [""; 0]);
    let keyless = MountpointPod::start();
    let request = keyless.request(ALICE, "no-metadata", &[]);
    let keyless_request = with(with(request, "AWS_SHARED_CREDENTIALS_FILE", ""), "AWS_PROFILE", "");
    assert_eq!(keyless.mount(&keyless_request).map(drop).unwrap_err().code, Code::NoCredentials);
    // Neither has a region by which to guess where it is.
    let guessing = MountpointPod::start();
    guessing.mount(&with(guessing.request(ALICE, "no-metadata", &[]), "AWS_REGION", "")).unwrap();
    assert_eq!(packets(), 0);

    // The rule counts, and the client would ask: without the variable that forbids it, one without keys does.
    let asking = MountpointPod::start();
    let allowed = with(keyless_request, "AWS_EC2_METADATA_DISABLED", "false");
    asking.mount(&allowed).map(drop).unwrap_err();
    assert_ne!(packets(), 0, "the control: nothing would be counted at all");
}

/// In the folder that Mountpoint Pods have it in.
fn authority() -> String {
    let folder = Path::new(AUTHORITY_IN_POD);
    fs::create_dir_all(folder).unwrap();
    let file = folder.join("ca-bundle.crt");
    fs::copy(cluster().authority(), &file).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_private_authority_is_trusted_when_it_is_given() {
    let client = bucket(ALICE, "with-tls");
    client.put("with-tls", "file", b"private").unwrap();
    let file = authority();
    for by_option in [true, false] {
        let pod = MountpointPod::start();
        let option = format!("--ca-bundle={file}");
        let arguments = if by_option { vec![option.as_str()] } else { vec![] };
        let request = with(pod.request(ALICE, "with-tls", &arguments), "AWS_ENDPOINT_URL", ENDPOINT_TLS);
        let request = if by_option { request } else { with(request, "AWS_CA_BUNDLE", &file) };
        let served = pod.mount(&request).unwrap();
        assert_eq!(served.read("file").unwrap(), b"private");
    }
}

#[test]
fn a_proxy_is_used_when_it_is_given() {
    bucket(ALICE, "with-proxy").put("with-proxy", "file", b"proxied").unwrap();
    let proxy = Relay::to(None);
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, "with-proxy", &[]), "AWS_ENDPOINT_URL", ENDPOINT_TLS);
    let request = with(with(request, "AWS_CA_BUNDLE", &authority()), "HTTPS_PROXY", &proxy.url());
    let served = pod.mount(&request).unwrap();
    assert_eq!(served.read("file").unwrap(), b"proxied");
    assert!(proxy.heard().contains("CONNECT s3.test:443"), "{}", proxy.heard());
}

/// Neither the S3 server nor its endpoint is to blame.
#[test]
fn a_proxy_that_is_not_there_is_named() {
    cluster();
    // Nothing listens on the port; the name is not known; the S3 client assumes no port.
    for (proxy, code, words) in [
        ("http://me:word@127.0.0.1:9", Code::EndpointUnreachable, "the proxy http://127.0.0.1:9 cannot be"),
        ("http://no-such-proxy.test:3128", Code::UnknownHost, "the proxy http://no-such-proxy.test:3128 "),
        ("http://127.0.0.1", Code::EndpointUnreachable, "its port is missing"),
    ] {
        let pod = MountpointPod::start();
        let request = with(pod.request(ALICE, "some-bucket", &[]), "AWS_ENDPOINT_URL", ENDPOINT_TLS);
        let refused = pod.mount(&with(request, "HTTPS_PROXY", proxy)).map(drop).unwrap_err();
        assert_eq!(refused.code, code, "{refused}");
        assert!(refused.message.contains(words) && refused.message.contains("proxy.httpsProxy"), "{refused}");
        assert!(!refused.message.contains("word"), "{refused}");
    }
}

#[test]
fn buckets_are_found_by_path_and_by_host_name() {
    bucket(ALICE, "by-name").put("by-name", "file", b"x").unwrap();
    let by_host = MountpointPod::start();
    let request = without(by_host.request(ALICE, "by-name", &["--debug-crt"]), &["--force-path-style"]);
    assert_eq!(by_host.mount(&request).unwrap().read("file").unwrap(), b"x");
    by_host.logs("by-name.s3.test");

    let relay = Relay::to(SERVER);
    let by_path = MountpointPod::start();
    let request = with(by_path.request(ALICE, "by-name", &[]), "AWS_ENDPOINT_URL", &relay.url());
    assert_eq!(by_path.mount(&request).unwrap().read("file").unwrap(), b"x");
    assert!(relay.heard().contains("GET /by-name/file "), "{}", relay.heard());
}

#[test]
fn the_endpoint_can_be_an_option() {
    bucket(ALICE, "endpoint-option");
    let relay = Relay::to(SERVER);
    let pod = MountpointPod::start();
    let option = format!("--endpoint-url={}", relay.url());
    let request =
        with(pod.request(ALICE, "endpoint-option", &[&option, "--region=us-east-1"]), "AWS_ENDPOINT_URL", "");
    let request = with(request, "AWS_REGION", "");
    assert_eq!(pod.mount(&request).unwrap().list("").unwrap(), [""; 0]);
    assert!(relay.heard().contains("GET /endpoint-option/"));
}

#[test]
fn the_server_learns_who_asks() {
    bucket(ALICE, "user-agent");
    let relay = Relay::to(SERVER);
    let pod = MountpointPod::start();
    let prefix = "--user-agent-prefix=s3-csi-driver/1.2.3 credential-source#secret";
    let request = with(pod.request(ALICE, "user-agent", &[prefix]), "AWS_ENDPOINT_URL", &relay.url());
    pod.mount(&request).unwrap();
    let heard = relay.heard();
    let agent = heard
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("user-agent: ").map(str::to_owned));
    let own =
        concat!("s3-csi-driver/1.2.3 credential-source#secret s3-csi-mountpoint/", env!("CARGO_PKG_VERSION"));
    assert!(agent.as_ref().is_some_and(|agent| agent.starts_with(own)), "{agent:?}");
}

#[test]
fn requests_can_be_unsigned() {
    let client = bucket(ALICE, "open-to-all");
    client.put("open-to-all", "file", b"public").unwrap();
    let pod = MountpointPod::start();
    let request = pod.request(ALICE, "open-to-all", &["--no-sign-request"]);
    assert_eq!(pod.mount(&request).map(drop).unwrap_err().code, Code::AccessDenied);
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
        "Action":["s3:GetObject","s3:ListBucket"],
        "Resource":["arn:aws:s3:::open-to-all","arn:aws:s3:::open-to-all/*"]}]}"#;
    client.put_policy("open-to-all", policy).unwrap();
    assert_eq!(pod.mount(&request).unwrap().read("file").unwrap(), b"public");
}

#[test]
fn the_number_of_attempts_can_be_set() {
    bucket(ALICE, "attempts").put("attempts", "file", b"x").unwrap();
    let requests = |attempts: &str| {
        let relay = Relay::to(SERVER);
        let pod = MountpointPod::start();
        let request = with(pod.request(ALICE, "attempts", &[]), "AWS_ENDPOINT_URL", &relay.url());
        let served = pod.mount(&with(request, "AWS_MAX_ATTEMPTS", attempts)).unwrap();
        relay.break_server();
        served.touch("file", |path| fs::metadata(path).map(drop)).unwrap_err();
        relay.refused()
    };
    // A name is looked up as an object and as a folder at once, and the first failure ends both.
    let (two, four) = (requests("2"), requests("4"));
    assert!((1..=4).contains(&two) && two < four && four <= 8, "{two} and {four} requests");
}
