//! Every way in which a bucket cannot be served: its own code, and a sentence that names the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use mounter::handover::{Code, MountRequest, Refused};
use s3_csi_tests::cluster;
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, with};
use xtask::s3::{ALICE, Account, BOB, ENDPOINT_TLS};

fn refusal(request_for: impl FnOnce(&MountpointPod) -> MountRequest) -> Refused {
    let pod = MountpointPod::start();
    let request = request_for(&pod);
    let refused = pod.mount(&request).map(drop).unwrap_err();
    assert!(!refused.message.contains(ALICE.secret_key));
    refused
}

fn with_arguments(arguments: &'static [&'static str]) -> Refused {
    cluster();
    refusal(|pod| pod.request(ALICE, "some-bucket", arguments))
}

fn expect(refused: &Refused, code: Code, words: &[&str]) {
    assert_eq!(refused.code, code, "{refused}");
    for word in words {
        assert!(refused.message.contains(word), "`{word}` is not in: {refused}");
    }
}

#[test]
fn no_such_bucket() {
    let refused = refusal(|pod| pod.request(ALICE, "no-such-bucket", &[]));
    expect(
        &refused,
        Code::NoSuchBucket,
        &["`no-such-bucket`", "http://s3.test", "(NoSuchBucket)", "create it"],
    );
}

/// Names that some servers take and others do not.
#[test]
fn a_name_that_the_server_does_not_take() {
    cluster();
    let refused = refusal(|pod| pod.request(ALICE, "My_Bucket", &[]));
    expect(
        &refused,
        Code::BadBucket,
        &["invalid `bucketName` \"My_Bucket\"", "http://s3.test", "InvalidBucketName: ", "lower-case"],
    );
}

#[test]
fn access_denied() {
    bucket(BOB, "bobs-own");
    let refused = refusal(|pod| pod.request(ALICE, "bobs-own", &[]));
    expect(&refused, Code::AccessDenied, &["`bobs-own`", "(AccessDenied: ", "allow these credentials"]);
}

/// The server's words are quoted. A page that is no listing is not.
#[test]
fn an_answer_that_has_no_code_of_its_own() {
    cluster();
    for (answer, words) in [
        (Fault::Refuse(400, "SomethingNew"), "refuses to list bucket `some-bucket` (SomethingNew: injected)"),
        (Fault::Invent(|_| "<html>hello</html>".to_owned()), "check that it is an S3 server"),
    ] {
        let server = Faulty::before("s3.test:80", move |_, _| answer);
        let url = server.url();
        let refused = refusal(|pod| with(pod.request(ALICE, "some-bucket", &[]), "AWS_ENDPOINT_URL", &url));
        expect(&refused, Code::Rejected, &[words, &url]);
        assert!(!refused.message.contains("hello"), "{refused}");
    }
}

#[test]
fn wrong_secret() {
    bucket(ALICE, "wrong-secret");
    let wrong = Account { secret_key: "not-the-secret-of-alice", ..ALICE };
    let refused = refusal(|pod| pod.request(wrong, "wrong-secret", &[]));
    expect(&refused, Code::WrongSecret, &["secret key", "(SignatureDoesNotMatch: ", "correct"]);
    assert!(!refused.message.contains(wrong.secret_key), "{refused}");
}

#[test]
fn unknown_key() {
    bucket(ALICE, "unknown-key");
    let unknown = Account { access_key: "AKIANOBODY", ..ALICE };
    let refused = refusal(|pod| pod.request(unknown, "unknown-key", &[]));
    expect(&refused, Code::UnknownKey, &["access key", "(InvalidAccessKeyId: ", "correct it"]);
}

#[test]
fn no_credentials() {
    bucket(ALICE, "no-credentials");
    let refused = refusal(|pod| {
        let request = pod.request(ALICE, "no-credentials", &[]);
        with(request, "AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    });
    expect(&refused, Code::NoCredentials, &["/no/such/file"]);
    let refused = refusal(|pod| {
        let request = pod.request(ALICE, "no-credentials", &[]);
        let request = with(request, "AWS_SHARED_CREDENTIALS_FILE", "");
        with(request, "AWS_PROFILE", "")
    });
    expect(&refused, Code::NoCredentials, &["provide them"]);
}

#[test]
fn endpoint_unreachable() {
    cluster();
    for (endpoint, place) in
        [("http://10.99.0.1:9", "10.99.0.1:9"), ("http://10.255.255.1", "10.255.255.1:80")]
    {
        let refused =
            refusal(|pod| with(pod.request(ALICE, "some-bucket", &[]), "AWS_ENDPOINT_URL", endpoint));
        expect(&refused, Code::EndpointUnreachable, &[place, "check that the S3 server is running"]);
    }
}

#[test]
fn unknown_host() {
    cluster();
    let refused = refusal(|pod| {
        let request = pod.request(ALICE, "some-bucket", &[]);
        with(request, "AWS_ENDPOINT_URL", "http://no-such-host.test")
    });
    expect(&refused, Code::UnknownHost, &["`no-such-host.test`", "DNS"]);
}

#[test]
fn untrusted_certificate() {
    cluster();
    let refused =
        refusal(|pod| with(pod.request(ALICE, "some-bucket", &[]), "AWS_ENDPOINT_URL", ENDPOINT_TLS));
    expect(&refused, Code::UntrustedCertificate, &["s3.test:443", "UnknownIssuer", "authority"]);
}

#[test]
fn wrong_region() {
    bucket(ALICE, "wrong-region");
    let refused = refusal(|pod| with(pod.request(ALICE, "wrong-region", &[]), "AWS_REGION", "eu-nowhere-1"));
    expect(
        &refused,
        Code::WrongRegion,
        &["eu-nowhere-1", "(AuthorizationHeaderMalformed: ", "correct the region"],
    );
}

#[test]
fn bad_options() {
    for (arguments, words) in [
        (&["--allow-deletes"][..], "'--allow-deletes'"),
        (&["--uid=root"], "'root'"),
        (&["--auto-unmount"], "auto-unmount"),
        (&["--endpoint-url=s3.test"], "http:// or https://"),
        (&["--ca-bundle=/etc/s3-csi/authority/no-file"], "/etc/s3-csi/authority/no-file"),
        (&["--ca-bundle=/proc/self/environ"], "tls.caCertConfigMap"),
        (&["--region=eu.evil.example/#"], "regions have up to 63 letters"),
        (&["--part-size=1024"], "a number from 5242880"),
    ] {
        let refused = with_arguments(arguments);
        expect(&refused, Code::BadOption, &[words]);
    }
}

/// The S3 client would find no address for the bucket, and name no option.
#[test]
fn options_of_amazon_at_another_server() {
    cluster();
    let acceleration = &["`transfer-acceleration`", "`s3.endpointUrl`", "`s3.addressing: virtual`"][..];
    for (argument, endpoint, words) in [
        ("--transfer-acceleration", Some("http://s3.test"), acceleration),
        // With addresses that do not contain the bucket, as the node asks for by default.
        ("--transfer-acceleration", None, acceleration),
        ("--dual-stack", Some("http://s3.test"), &["`dual-stack`", "`s3.endpointUrl`"]),
        ("--expected-bucket-owner=alice", None, &["`expected-bucket-owner` \"alice\"", "12 digits"]),
    ] {
        let refused = refusal(|pod| {
            let request = pod.request(ALICE, "some-bucket", &[argument]);
            with(request, "AWS_ENDPOINT_URL", endpoint.unwrap_or_default())
        });
        expect(&refused, Code::BadOption, words);
    }
}

#[test]
fn prefix_without_slash() {
    expect(&with_arguments(&["--prefix=data"]), Code::BadPrefix, &["`data`", "write `data/`"]);
}

#[test]
fn cache_not_writable() {
    expect(&with_arguments(&["--cache=/no/such/folder"]), Code::CacheNotWritable, &["/no/such/folder"]);
    let folder = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let argument = format!("--cache={}", folder.path().display());
    let refused = refusal(|pod| pod.request(ALICE, "some-bucket", &[&argument]));
    expect(&refused, Code::CacheNotWritable, &["Permission denied"]);
}

/// A server that accepts and never answers.
#[test]
fn time_out() {
    cluster();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let silent = std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            held.push(stream);
            if held.len() > 50 {
                break;
            }
        }
    });
    let refused = refusal(|pod| with(pod.request(ALICE, "some-bucket", &[]), "AWS_ENDPOINT_URL", &endpoint));
    // On a busy machine the mounter may be the one who says so.
    expect(&refused, Code::TimedOut, &[]);
    drop(silent);
}

#[test]
fn append_to_a_bucket_that_cannot() {
    bucket(ALICE, "no-append");
    let refused = refusal(|pod| pod.request(ALICE, "no-append", &["--incremental-upload"]));
    expect(&refused, Code::BadOption, &["incremental-upload", "loses data"]);
}

/// What only directory buckets know destroys data everywhere else, whatever the user says and however the bucket is called.
#[test]
fn a_bucket_that_is_said_to_be_a_directory_bucket() {
    bucket(ALICE, "no-directory");
    let refused = refusal(|pod| pod.request(ALICE, "no-directory", &["--bucket-type=directory"]));
    expect(&refused, Code::BadOption, &["bucket-type", "`no-directory`"]);
}
