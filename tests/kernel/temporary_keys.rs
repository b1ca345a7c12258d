//! Temporary keys that an agent gives for a token, renewed while a bucket is served.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use mounter::figures::{FILE, Figures};
use mounter::handover::{Code, MountReply};
use mounter::{EXPIRED, SURVIVAL};
use s3_csi_tests::agent::{Agent, Refusal};
use s3_csi_tests::cluster;
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket, eventually};
use s3_csi_tests::relocation::{Kept, leaves};
use xtask::s3::{ALICE, Account, accounts};

const BRIEFLY: SignedDuration = SignedDuration::from_secs(4);
const TOKEN: &str = "token-of-the-workload";

/// Gives keys that are said to last so long.
fn agent(last: SignedDuration, holder: &Arc<Mutex<Option<Account>>>) -> Agent {
    let holder = Arc::clone(holder);
    let accept = move |token: &str| {
        let account = holder.lock().unwrap().filter(|_| token == TOKEN);
        account.ok_or(Refusal::NoAssociation)
    };
    Agent::start("127.0.0.1:0", last, Arc::new(accept))
}

fn agent_of_alice(last: SignedDuration) -> Agent {
    agent(last, &Arc::new(Mutex::new(Some(ALICE))))
}

fn shows_no_secret(pod: &MountpointPod, accounts: &[Account]) {
    let log = pod.log();
    for secret in accounts.iter().map(|account| account.secret_key).chain([TOKEN]) {
        assert!(!log.contains(secret), "{secret}");
    }
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
    let agent = agent(BRIEFLY, &holder);
    let pod = MountpointPod::start();
    let served = pod.mount(&pod.request_at(&agent.url(), TOKEN, "temporary")).unwrap();
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
    shows_no_secret(&pod, &[OLD, NEW]);
}

/// STS and the agent are away at the very moment at which many mounts move, for example: during an upgrade.
#[test]
fn the_next_mount_process_uses_the_keys_of_its_predecessor() {
    let (name, last) = ("keys-kept", SignedDuration::from_hours(1));
    let (client, agent) = (bucket(ALICE, name), agent_of_alice(last));
    let (first, second) = (MountpointPod::start(), MountpointPod::start());
    let served = first.mount(&first.request_at(&agent.url(), TOKEN, name)).unwrap();
    agent.stay_away(true);
    kill(&first, between_requests);
    client.put(name, "died", b"x").unwrap();
    assert_eq!(served.read("died").unwrap(), b"x");

    let kept = Kept::of(&first);
    assert_eq!(leaves(&first), MountReply::Left);
    let reply = kept.arrives_with(&second, second.request_at(&agent.url(), TOKEN, name));
    assert!(matches!(reply, MountReply::Serving(_)), "{reply:?}");
    client.put(name, "moved", b"x").unwrap();
    assert_eq!(served.read("moved").unwrap(), b"x");
    kill(&second, between_requests);
    client.put(name, "died-again", b"x").unwrap();
    assert_eq!(served.read("died-again").unwrap(), b"x");
    assert_eq!(agent.given(), 1);
    for pod in [&first, &second] {
        let keys = fs::metadata(pod.comm.path().join(SURVIVAL).join("keys")).unwrap();
        assert_eq!(keys.permissions().mode() & 0o777, 0o600);
        shows_no_secret(pod, &[ALICE]);
    }
}

/// They may be valid for the server's clock, and once the agent is back the mount heals, as one whose process has not died.
#[test]
fn the_next_mount_process_serves_although_its_keys_have_expired() {
    let name = "keys-expired";
    bucket(ALICE, name).put(name, "file", b"x").unwrap();
    let (agent, pod) = (agent_of_alice(BRIEFLY), MountpointPod::start());
    let served = pod.mount(&pod.request_at(&agent.url(), TOKEN, name)).unwrap();
    let is_expired = || pod.comm.path().join(EXPIRED).exists();
    agent.stay_away(true);
    eventually("the keys have expired", is_expired);
    kill(&pod, between_requests);
    assert_eq!(served.list("").unwrap(), ["file"]);
    eventually("the node learns from this process, too, that the keys have expired", is_expired);
    let before = agent.given();
    agent.stay_away(false);
    eventually("new keys", || agent.given() > before && !is_expired());
    assert_eq!(served.read("file").unwrap(), b"x");
}

#[test]
fn a_token_without_a_role_is_refused_by_name() {
    bucket(ALICE, "no-association").put("no-association", "file", b"x").unwrap();
    let agent = agent_of_alice(BRIEFLY);
    let pod = MountpointPod::start();
    let refused = pod.mount(&pod.request_at(&agent.url(), "another-token", "no-association")).err().unwrap();
    assert_eq!(refused.code, Code::AccessDenied, "{refused}");
    assert!(refused.message.contains("no association for this service account"), "{refused}");
    let away = pod.mount(&pod.request_at("http://127.0.0.1:1/", TOKEN, "no-association"));
    let away = away.err().unwrap();
    assert_eq!(away.code, Code::EndpointUnreachable, "{away}");
}
