//! Temporary keys that an agent gives for a token, renewed while a bucket is served.

use std::fs;
use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use mounter::figures::{FILE, Figures};
use mounter::handover::Code;
use s3_csi_tests::agent::{Agent, Refusal};
use s3_csi_tests::cluster;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, eventually};
use xtask::s3::{ALICE, Account, accounts};

const LAST: SignedDuration = SignedDuration::from_secs(4);

fn agent(holder: &Arc<Mutex<Option<Account>>>) -> Agent {
    let holder = Arc::clone(holder);
    let accept = move |token: &str| {
        let account = holder.lock().unwrap().filter(|_| token == "token-of-the-workload");
        account.ok_or(Refusal::NoAssociation)
    };
    Agent::start("127.0.0.1:0", LAST, Arc::new(accept))
}

/// As the node exports it.
fn expire(pod: &MountpointPod) -> Option<u64> {
    Figures::parse(&fs::read(pod.comm.path().join(FILE)).ok()?)?.keys_expire
}

#[test]
fn temporary_keys_are_renewed_before_they_expire() {
    const OLD: Account =
        Account { name: "old", access_key: "AKIAPAST", secret_key: "past-secret-of-the-test-server" };
    const NEW: Account =
        Account { name: "new", access_key: "AKIAFUTURE", secret_key: "future-secret-of-the-test-server" };
    let programs = cluster().programs().unwrap();
    for account in [OLD, NEW] {
        accounts::create(&programs, account.access_key, account.secret_key).unwrap();
    }
    bucket(ALICE, "temporary").put("temporary", "file", b"x").unwrap();
    accounts::give_bucket(&programs, "temporary", OLD.access_key).unwrap();
    let holder = Arc::new(Mutex::new(Some(OLD)));
    let agent = agent(&holder);
    let pod = MountpointPod::start();
    let served = pod.mount(&pod.request_at(&agent.url(), "token-of-the-workload", "temporary")).unwrap();
    eventually("the keys are renewed three times", || {
        assert_eq!(served.read("file").unwrap(), b"x");
        agent.given() > 3
    });
    eventually("the node learns when the keys expire", || expire(&pod).is_some());
    let first = expire(&pod);
    eventually("the node learns when their successors expire", || expire(&pod) > first);

    // The agent is away until after the keys have become invalid: requests fail, then work again by themselves.
    *holder.lock().unwrap() = None;
    accounts::give_bucket(&programs, "temporary", NEW.access_key).unwrap();
    eventually("requests fail", || served.list("").is_err());
    pod.logs("cannot renew the temporary keys");
    *holder.lock().unwrap() = Some(NEW);
    eventually("the mount has healed", || served.read("file").is_ok());
    let log = pod.log();
    for secret in [OLD.secret_key, NEW.secret_key, "token-of-the-workload"] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[test]
fn a_token_without_a_role_is_refused_by_name() {
    bucket(ALICE, "no-association").put("no-association", "file", b"x").unwrap();
    let agent = agent(&Arc::new(Mutex::new(Some(ALICE))));
    let pod = MountpointPod::start();
    let refused = pod.mount(&pod.request_at(&agent.url(), "another-token", "no-association")).err().unwrap();
    assert_eq!(refused.code, Code::AccessDenied, "{refused}");
    assert!(refused.message.contains("no association for this service account"), "{refused}");
    let away = pod.mount(&pod.request_at("http://127.0.0.1:1/", "token-of-the-workload", "no-association"));
    let away = away.err().unwrap();
    assert_eq!(away.code, Code::EndpointUnreachable, "{away}");
}
