//! A mount of the bucket, used by programs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, with};
use s3_csi_tests::processes::{memory_mb, processes, processor_times_of};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

use super::rows::Row;
use super::{BUCKET, Place, seconds, settle};

/// For ten thousand files on a busy machine.
const ROW_LIMIT: Duration = Duration::from_mins(10);

/// What serves the bucket.
pub(super) struct Front<'a> {
    pub(super) name: &'a str,
    /// Arguments of the mounter.
    pub(super) mounter: &'a [&'a str],
    /// Arguments of the mount process.
    pub(super) mount: &'a [&'a str],
    /// Of the mount process, beside what the request has.
    pub(super) environment: &'a [(&'a str, &'a str)],
    /// How far the kernel reads ahead, in KiB; otherwise as far as on a node of ours.
    pub(super) read_ahead: Option<&'a str>,
}

pub(super) struct Mounted {
    pub(super) rows: BTreeMap<&'static str, Figures>,
    pub(super) peak_mb: f64,
}

/// Of one row; of the last time if it was measured more than once.
pub(super) struct Figures {
    pub(super) seconds: f64,
    /// For each operation, where they are counted.
    pub(super) requests: Option<f64>,
    /// Of each of [`PROCESSES`], in user mode and in the kernel.
    pub(super) processor_seconds: [[f64; 2]; 3],
}

/// The last one is this program, which uses the files.
pub(super) const PROCESSES: [&str; 3] = ["mount", "server", "reader"];

impl Mounted {
    pub(super) fn measure(
        client: &Client,
        front: &Front<'_>,
        place: &Place,
        rows: &[&'static Row],
        round: usize,
    ) -> Self {
        let pod = MountpointPod::start_with(front.mounter);
        let request = pod.request(ALICE, BUCKET, front.mount);
        let relay = place.relay();
        let request = match &relay {
            Some(relay) => with(request, "AWS_ENDPOINT_URL", &relay.url()),
            None => request,
        };
        let request =
            front.environment.iter().fold(request, |request, (name, value)| with(request, name, value));
        let (served, amount) = (pod.mount(&request).unwrap(), place.amount);
        if let Some(kib) = front.read_ahead {
            set_read_ahead(&served, kib);
        }
        let process = served.facts.pid;
        let name = format!("{}{}-{round}", front.name, place.suffix);
        let mut measured = BTreeMap::new();
        for row in rows {
            settle(client);
            let (root, name, act) = (served.path(""), name.clone(), row.act);
            let requests = || relay.as_ref().map(Relay::request_count);
            let before = (requests(), processor_seconds(process));
            let took = within(row.key, ROW_LIMIT.max(LIMIT), move || seconds(|| act(&root, &amount, &name)));
            let after = processor_seconds(process);
            let used = [0, 1, 2].map(|of| [0, 1].map(|mode| after[of][mode] - before.1[of][mode]));
            let requests = requests().zip(before.0).map(|(after, before)| after - before);
            let operations = (row.operations)(&amount) as f64;
            let requests = requests.map(|requests| requests as f64 / operations);
            measured.insert(row.key, Figures { seconds: took, requests, processor_seconds: used });
        }
        let times: Vec<String> =
            measured.iter().map(|(key, row)| format!("{key} {:.2}", row.seconds)).collect();
        eprintln!("{name}: {} s", times.join(", "));
        Self { rows: measured, peak_mb: memory_mb(process, "VmHWM:") }
    }
}

fn set_read_ahead(served: &Served, kib: &str) {
    let (major, minor) = served.device();
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib).unwrap();
}

/// Since the start of each of [`PROCESSES`].
fn processor_seconds(mount: u32) -> [[f64; 2]; 3] {
    let sum = |[user, system]: [f64; 2], more: [f64; 2]| [user + more[0], system + more[1]];
    // The one for TLS has nothing to do meanwhile.
    let servers = processes("versitygw", None).into_iter().map(processor_times_of).fold([0.0; 2], sum);
    [processor_times_of(mount), servers, processor_times_of(std::process::id())]
}
