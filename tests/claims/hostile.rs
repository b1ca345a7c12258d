//! An S3 server that sends as much as it can.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use s3_csi_tests::claims::{LIMIT, Tenant};
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::{Seen, eventually};
use serde_json::json;
use xtask::s3::ALICE;

const SERVER: &str = "s3.test:80";
const LIST: &str = "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
/// More than are worked on at once.
const VOLUMES: usize = 24;
/// Of the controller's container; the rest is for the page cache and for a larger cluster.
const MOST_BYTES: usize = 160 << 20;

/// The prefix that a list is asked for.
fn prefix(line: &str) -> String {
    let (_, rest) = line.split_once("prefix=").unwrap_or_default();
    rest.split(['&', ' ']).next().unwrap_or_default().replace("%2F", "/")
}

/// A list of this length, with a key below the prefix again and again.
fn list(line: &str, bytes: usize) -> String {
    let entry = format!("<Contents><Key>{}key</Key></Contents>", prefix(line));
    LIST.to_owned() + &entry.repeat(bytes / entry.len()) + "</ListBucketResult>"
}

/// Much too long for a list, and just short enough, with a hundred times more keys than were asked for.
fn flood(line: &str) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    list(line, if NUMBER.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { 32 << 20 } else { 4_000_000 })
}

/// The most memory that the process has ever had.
fn peak_bytes(controller: &Controller) -> usize {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", controller.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Claims with prefixes whose objects go with them, in a bucket behind the server; returns the names of their volumes.
async fn prefixes(tenant: &Tenant, bucket: &str, count: usize) -> Vec<String> {
    tenant.server.create_bucket(bucket).unwrap();
    let parameters = json!({"bucketName": bucket, "deletionPolicy": "delete-objects"});
    tenant.class("prefixed", parameters, json!({})).await;
    for number in 0..count {
        tenant.claim(&format!("data-{number}"), "prefixed").await;
    }
    let mut volumes = Vec::new();
    for number in 0..count {
        volumes.push(tenant.bound(&format!("data-{number}")).await.name_any());
    }
    volumes
}

#[tokio::test]
async fn answers_without_measure_do_not_decide_how_much_memory_is_used() {
    let _running = controller::none().await;
    let tenant = Tenant::set("flooded", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    let volumes = prefixes(&tenant, "flooded-bucket", VOLUMES).await;
    server.plan(|_, line| match line.split('?').next() {
        Some("GET /flooded-bucket/") => Fault::Invent(flood),
        _ => Fault::None,
    });
    for number in 0..VOLUMES {
        tenant.delete(&format!("data-{number}")).await;
    }
    for volume in &volumes {
        tenant.has_event(volume, &["VolumeFailedDelete:", "sent an invalid response"]).await;
    }
    let peak = peak_bytes(&controller);
    assert!(peak < MOST_BYTES, "{} MiB", peak >> 20);
    // It behaves again, and so do we.
    server.plan(|_, _| Fault::None);
    for volume in &volumes {
        tenant.volume_gone(volume).await;
    }
    drop(controller);
}

/// Lists that the server was asked for and has not answered yet: now, and at most.
static UNANSWERED: AtomicUsize = AtomicUsize::new(0);
static MOST_UNANSWERED: AtomicUsize = AtomicUsize::new(0);
/// Before it asks, the controller sets 4 MiB of 24 MiB aside for the longest list that it would take.
const LISTS_AT_ONCE: usize = 6;
/// Time for others to be asked for as well.
const ANSWERS_AFTER: Duration = Duration::from_millis(500);

/// An empty list.
fn slow(_: &str) -> String {
    let unanswered = UNANSWERED.fetch_add(1, Ordering::Relaxed) + 1;
    MOST_UNANSWERED.fetch_max(unanswered, Ordering::Relaxed);
    std::thread::sleep(ANSWERS_AFTER);
    UNANSWERED.fetch_sub(1, Ordering::Relaxed);
    LIST.to_owned() + "</ListBucketResult>"
}

#[tokio::test]
async fn no_more_answers_are_asked_for_at_once_than_there_is_memory_for() {
    let _running = controller::none().await;
    let tenant = Tenant::set("crowded", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    let volumes = prefixes(&tenant, "crowded-bucket", VOLUMES).await;
    server.plan(|_, line| match line.split('?').next() {
        Some("GET /crowded-bucket/") => Fault::Invent(slow),
        _ => Fault::None,
    });
    for number in 0..VOLUMES {
        tenant.delete(&format!("data-{number}")).await;
    }
    for volume in &volumes {
        tenant.volume_gone(volume).await;
    }
    let most = MOST_UNANSWERED.load(Ordering::Relaxed);
    assert!((2..=LISTS_AT_ONCE).contains(&most), "{most} lists at once");
    drop(controller);
}

/// When lists were asked for.
static LISTS: Mutex<Vec<Instant>> = Mutex::new(Vec::new());
/// What is listed and deleted before others get their turn.
const BATCHES: usize = 20;

/// A thousand keys that were never there before.
fn endless(line: &str) -> String {
    let mut lists = LISTS.lock().unwrap();
    lists.push(Instant::now());
    page(&prefix(line), lists.len())
}

fn page(prefix: &str, number: usize) -> String {
    let mut page = LIST.to_owned();
    for key in 0..1000 {
        write!(page, "<Contents><Key>{prefix}{number}/{key}</Key></Contents>").unwrap();
    }
    page + "</ListBucketResult>"
}

fn deleted(_: &str) -> String {
    "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>".to_owned()
}

#[tokio::test]
async fn a_prefix_without_end_pauses_and_others_are_served() {
    let _running = controller::none().await;
    let tenant = Tenant::set("endless", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    let volume = prefixes(&tenant, "endless-bucket", 1).await.remove(0);
    server.plan(|_, line| match line.split('?').next() {
        Some("GET /endless-bucket/") => Fault::Invent(endless),
        Some("POST /endless-bucket/") => Fault::Invent(deleted),
        _ => Fault::None,
    });
    tenant.delete("data-0").await;
    let times = eventually("three turns were taken", LIMIT, || async {
        let lists = LISTS.lock().unwrap();
        Seen::some((lists.len() > 2 * BATCHES).then(|| lists.clone()), lists.len())
    })
    .await;
    for turn in 1..=2 {
        let pause = times[turn * BATCHES] - times[turn * BATCHES - 1];
        assert!(pause >= Duration::from_secs(1), "{pause:?} before turn {turn}");
    }
    tenant.class("plain", json!({}), json!({})).await;
    tenant.claim("other", "plain").await;
    tenant.bound("other").await;
    server.plan(|_, _| Fault::None);
    tenant.volume_gone(&volume).await;
    drop(controller);
}

/// Prefixes that were listed.
static LISTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// Twenty of them are much longer than a turn may last.
const PAGE_TAKES: Duration = Duration::from_secs(2);
/// Less than a turn of twenty pages, and much more than a claim takes on a busy machine.
const CLAIM_TAKES: Duration = Duration::from_secs(30);

fn slow_and_endless(line: &str) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    std::thread::sleep(PAGE_TAKES);
    LISTED.lock().unwrap().insert(prefix(line));
    page(&prefix(line), NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[tokio::test]
async fn prefixes_without_end_delay_no_claim_and_all_get_their_turn() {
    let _running = controller::none().await;
    let tenant = Tenant::set("slowly", ALICE).await;
    let server = Faulty::before(SERVER, |_, _| Fault::None);
    let endpoint = format!("--endpoint-url={}", server.url());
    let controller = Controller::start(&tenant.here.client, &[&endpoint, "--leader-election=false"]).await;
    let volumes = prefixes(&tenant, "slowly-bucket", VOLUMES).await;
    server.plan(|_, line| match line.split('?').next() {
        // What a claim asks is one key.
        Some("GET /slowly-bucket/") if line.contains("max-keys=1000") => Fault::Invent(slow_and_endless),
        Some("POST /slowly-bucket/") => Fault::Invent(deleted),
        _ => Fault::None,
    });
    for number in 0..VOLUMES {
        tenant.delete(&format!("data-{number}")).await;
    }
    let listed = |least: usize| {
        eventually("prefixes were listed", LIMIT, move || async move {
            let listed = LISTED.lock().unwrap().len();
            Seen::some((listed >= least).then_some(()), listed)
        })
    };
    listed(LISTS_AT_ONCE).await;
    tenant.class("plain", json!({}), json!({})).await;
    for class in ["plain", "prefixed"] {
        let began = Instant::now();
        tenant.claim(class, class).await;
        tenant.bound(class).await;
        assert!(began.elapsed() < CLAIM_TAKES, "{class}: {:?}", began.elapsed());
    }
    listed(VOLUMES).await;
    server.plan(|_, _| Fault::None);
    for volume in &volumes {
        tenant.volume_gone(volume).await;
    }
    drop(controller);
}
