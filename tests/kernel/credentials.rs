//! Keys that change while a bucket is served.

use std::fs::File;
use std::io::Read as _;

use s3_csi_tests::cluster;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket};
use s3_csi_tests::within;
use xtask::s3::{ALICE, Account, accounts};

const OLD: Account =
    Account { name: "old", access_key: "AKIAOLD", secret_key: "old-secret-of-the-test-server" };
const NEW: Account =
    Account { name: "new", access_key: "AKIANEW", secret_key: "new-secret-of-the-test-server" };

/// The server knows one key per account; two accounts that may do the same are as good as two keys of one.
fn shared_bucket(name: &str, keys: &[Account]) {
    let programs = cluster().programs().unwrap();
    for account in keys {
        accounts::create(&programs, account.access_key, account.secret_key).unwrap();
    }
    // With a policy, the owner has no more rights than that gives.
    let names: Vec<String> =
        keys.iter().chain([&ALICE]).map(|account| format!("{:?}", account.access_key)).collect();
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":{{"AWS":[{}]}},"Action":"s3:*",
           "Resource":["arn:aws:s3:::{name}","arn:aws:s3:::{name}/*"]}}]}}"#,
        names.join(",")
    );
    bucket(ALICE, name).put_policy(name, &policy).unwrap();
}

#[test]
fn a_rotated_key_is_used_at_once_and_readers_notice_nothing() {
    const SIZE: usize = 256 << 20;
    shared_bucket("rotated", &[OLD, NEW]);
    let client = xtask::s3::Client::new(xtask::s3::ENDPOINT, ALICE).unwrap();
    let content: Vec<u8> = (0..SIZE).map(|at| u8::try_from(at / 4099 % 251).unwrap()).collect();
    client.put("rotated", "small", b"small").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(OLD, "rotated", &[]);
    served.write("large", content.clone()).unwrap();
    let path = served.path("large");
    let mut open = within("opening", LIMIT, move || File::open(path).unwrap());
    let (mut read, mut open) = within("the first megabyte", LIMIT, move || {
        let mut first = vec![0; 1 << 20];
        open.read_exact(&mut first).unwrap();
        (first, open)
    });

    pod.provide(NEW.access_key, NEW.secret_key);
    accounts::delete(&cluster().programs().unwrap(), OLD.access_key).unwrap();

    let old = xtask::s3::Client::new(xtask::s3::ENDPOINT, OLD).unwrap();
    assert!(old.get("rotated", "small").is_err(), "the old key is invalid");

    assert_eq!(served.read("small").unwrap(), b"small", "a new request");
    served.write("written", "with the new key").unwrap();
    let rest = within("the rest of an open file", LIMIT, move || {
        let mut rest = Vec::new();
        open.read_to_end(&mut rest).map(|_| rest)
    });
    read.extend(rest.unwrap());
    assert!(read == content, "the file that was open");
    pod.logs("credentials changed");
}

#[test]
fn a_broken_file_leaves_the_keys_that_work() {
    bucket(ALICE, "broken-keys").put("broken-keys", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "broken-keys", &[]);
    std::fs::write(pod.keys(), "[s3-csi]\naws_access_key_id=AKIA\n").unwrap();
    assert_eq!(served.read("file").unwrap(), b"x");
    pod.logs("the old ones stay");
    std::fs::remove_file(pod.keys()).unwrap();
    assert_eq!(served.list("").unwrap(), ["file"]);
    pod.provide(ALICE.access_key, "wrong-secret-of-alice");
    assert!(served.read("other").is_err());
    pod.provide(ALICE.access_key, ALICE.secret_key);
    assert_eq!(served.list("").unwrap(), ["file"], "no new mount is needed");
}

#[test]
fn a_file_that_is_written_again_with_the_same_keys_changes_nothing() {
    bucket(ALICE, "same-keys").put("same-keys", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "same-keys", &[]);
    let keys = std::fs::read(pod.keys()).unwrap();
    for _ in 0..3 {
        std::fs::write(pod.keys(), &keys).unwrap();
        assert_eq!(served.read("file").unwrap(), b"x");
    }
    assert!(!pod.log().contains("credentials changed"));
}

/// Signed requests contain session tokens, and a reader of the log could use a signature.
#[test]
fn the_clients_own_log_has_nothing_that_is_signed() {
    bucket(ALICE, "signed").put("signed", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "signed", &["--debug-crt"]);
    assert_eq!(served.read("file").unwrap(), b"x");
    pod.logs("awscrt::");
    let log = pod.log();
    for word in ["Signature=", "AWS4-HMAC-SHA256", "awscrt::AuthSigning", ALICE.secret_key] {
        assert!(!log.contains(word), "{word}");
    }
}
