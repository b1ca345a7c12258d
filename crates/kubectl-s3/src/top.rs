//! What each mount does at the moment: the metrics of a node service, twice, and the difference. A node service is asked from
//! inside its container, like for a self-check.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where the chart's node service serves its metrics, unless the variable `PROBES_ADDRESS` says otherwise.
const NODE_SERVICE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9808);
/// Reading a few files for each mount takes milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The metrics of mounts.
const PREFIX: &str = "s3_csi_node_mount_";

/// Of one mount, on average over the time between two looks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Activity {
    pub namespace: String,
    pub claim: String,
    pub volume: String,
    pub node: String,
    pub mountpoint_pod: String,
    pub requests_per_second: f64,
    /// Answers other than success, without 404, and no answer.
    pub errors_per_second: f64,
    /// Of a request, if there was one.
    pub latency_seconds: Option<f64>,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
    /// Of the blocks that were looked for in the cache.
    pub cache_hit_ratio: Option<f64>,
    pub uploads: f64,
    pub oldest_request_seconds: f64,
}

/// Who was asked, and what they said.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    pub mounts: Vec<Activity>,
    /// Why, by node.
    pub unreachable: BTreeMap<String, String>,
}

impl Top {
    /// The busiest mounts first.
    pub fn of(answers: Vec<(String, Result<Vec<Activity>, String>)>, namespace: Option<&str>) -> Self {
        let mut top = Self::default();
        for (node, answer) in answers {
            match answer {
                Ok(mounts) => top.mounts.extend(mounts),
                Err(error) => drop(top.unreachable.insert(node, error)),
            }
        }
        top.mounts.retain(|mount| namespace.is_none_or(|namespace| mount.namespace == namespace));
        top.mounts.sort_by(|one, other| {
            let busy = |mount: &Activity| mount.requests_per_second + mount.oldest_request_seconds;
            let name = |mount: &Activity| (mount.namespace.clone(), mount.claim.clone(), mount.node.clone());
            busy(other).total_cmp(&busy(one)).then_with(|| name(one).cmp(&name(other)))
        });
        top
    }
}

/// Of the node service in this container.
pub fn look(over: Duration) -> io::Result<Vec<Activity>> {
    let before = scrape()?;
    std::thread::sleep(over);
    Ok(activities(&before, &scrape()?, over.as_secs_f64()))
}

fn scrape() -> io::Result<String> {
    let named = std::env::var("PROBES_ADDRESS").ok().and_then(|address| address.parse().ok());
    let mut address: SocketAddr = named.unwrap_or(NODE_SERVICE);
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other(answer.lines().next().unwrap_or("no answer").to_owned())),
    }
}

/// What one mount has counted so far.
#[derive(Clone, Debug, Default)]
struct Counted {
    labels: Activity,
    requests: f64,
    errors: f64,
    seconds: f64,
    read: f64,
    written: f64,
    hits: f64,
    misses: f64,
}

impl Counted {
    fn is_before(&self, later: &Self) -> bool {
        self.requests <= later.requests && self.read <= later.read && self.written <= later.written
    }
}

/// By Mountpoint Pod.
fn counted(text: &str) -> BTreeMap<&str, Counted> {
    let mut mounts: BTreeMap<&str, Counted> = BTreeMap::new();
    for (name, labels, value) in text.lines().filter_map(sample) {
        let label = |name: &str| labels.get(name).copied().unwrap_or_default();
        let mount = mounts.entry(label("mountpoint_pod")).or_insert_with(|| {
            let labels = Activity {
                namespace: label("namespace").to_owned(),
                claim: label("persistentvolumeclaim").to_owned(),
                volume: label("volume").to_owned(),
                node: label("node").to_owned(),
                mountpoint_pod: label("mountpoint_pod").to_owned(),
                ..Activity::default()
            };
            Counted { labels, ..Counted::default() }
        });
        match name {
            "s3_requests_total" => {
                mount.requests += value;
                mount.errors += if is_error(label("code")) { value } else { 0.0 };
            }
            "s3_request_seconds_sum" => mount.seconds += value,
            "read_bytes_total" => mount.read = value,
            "written_bytes_total" => mount.written = value,
            "cache_blocks_total" if label("result") == "hit" => mount.hits = value,
            "cache_blocks_total" => mount.misses = value,
            "uploads" => mount.labels.uploads = value,
            "oldest_request_seconds" => mount.labels.oldest_request_seconds = value,
            _ => {}
        }
    }
    mounts
}

/// `name{label="value",…} 1`, of a mount. Values of labels have no quotes.
fn sample(line: &str) -> Option<(&str, BTreeMap<&str, &str>, f64)> {
    let (name, rest) = line.strip_prefix(PREFIX)?.split_once('{')?;
    let (labels, value) = rest.split_once("} ")?;
    let labels = labels.trim_end_matches('"').split("\",");
    Some((name, labels.filter_map(|label| label.split_once("=\"")).collect(), value.parse().ok()?))
}

/// That a name does not exist is an everyday answer, and a request that is no longer needed is canceled.
fn is_error(code: &str) -> bool {
    !code.starts_with(['2', '3']) && !["404", "canceled"].contains(&code)
}

fn activities(before: &str, after: &str, seconds: f64) -> Vec<Activity> {
    let earlier = counted(before);
    let activity = |(pod, now): (&str, Counted)| {
        // The process that counts may have been followed by another.
        let then = earlier.get(pod).filter(|then| then.is_before(&now)).cloned().unwrap_or_default();
        let (requests, looked) =
            (now.requests - then.requests, now.hits + now.misses - then.hits - then.misses);
        Activity {
            requests_per_second: requests / seconds,
            errors_per_second: (now.errors - then.errors) / seconds,
            latency_seconds: (requests > 0.0).then(|| (now.seconds - then.seconds) / requests),
            read_bytes_per_second: (now.read - then.read) / seconds,
            written_bytes_per_second: (now.written - then.written) / seconds,
            cache_hit_ratio: (looked > 0.0).then(|| (now.hits - then.hits) / looked),
            ..now.labels
        }
    };
    counted(after).into_iter().map(activity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(requests: u32, errors: u32, read: u32, hits: u32) -> String {
        let of = "volume=\"pv\",namespace=\"shop\",persistentvolumeclaim=\"data\",node=\"n\",mountpoint_pod=\"mp-1\"";
        let prefix = "s3_csi_node_mount";
        format!(
            "# TYPE {prefix}_s3_requests counter\n\
             {prefix}_s3_requests_total{{{of},operation=\"GetObject\",code=\"206\"}} {requests}\n\
             {prefix}_s3_requests_total{{{of},operation=\"HeadObject\",code=\"404\"}} 3\n\
             {prefix}_s3_requests_total{{{of},operation=\"GetObject\",code=\"503\"}} {errors}\n\
             {prefix}_s3_request_seconds_sum{{{of},operation=\"GetObject\"}} {}\n\
             {prefix}_s3_request_seconds_bucket{{{of},operation=\"GetObject\",le=\"+Inf\"}} 9\n\
             {prefix}_cache_blocks_total{{{of},result=\"hit\"}} {hits}\n\
             {prefix}_cache_blocks_total{{{of},result=\"miss\"}} 1\n\
             {prefix}_read_bytes_total{{{of}}} {read}\n\
             {prefix}_uploads{{{of}}} 2\n\
             {prefix}_oldest_request_seconds{{{of}}} 7\n\
             s3_csi_node_sweeps_total 1\n# EOF\n",
            f64::from(requests) / 10.0,
        )
    }

    #[test]
    fn a_mount_does_what_it_has_counted_since() {
        let found = activities(&metrics(10, 0, 100, 1), &metrics(28, 2, 1100, 4), 10.0);
        let expected = Activity {
            namespace: "shop".into(),
            claim: "data".into(),
            volume: "pv".into(),
            node: "n".into(),
            mountpoint_pod: "mp-1".into(),
            requests_per_second: 2.0,
            errors_per_second: 0.2,
            latency_seconds: found[0].latency_seconds,
            read_bytes_per_second: 100.0,
            written_bytes_per_second: 0.0,
            cache_hit_ratio: Some(1.0),
            uploads: 2.0,
            oldest_request_seconds: 7.0,
        };
        assert_eq!(found, [expected]);
        assert!((found[0].latency_seconds.unwrap() - 0.09).abs() < 1e-9, "{found:?}");
        let idle = activities(&metrics(10, 0, 100, 1), &metrics(10, 0, 100, 1), 10.0);
        assert_eq!((idle[0].requests_per_second, idle[0].latency_seconds), (0.0, None));
    }

    #[test]
    fn a_successor_counts_from_the_beginning_and_a_new_mount_as_well() {
        let after = metrics(5, 0, 40, 0);
        for before in [metrics(10, 0, 100, 1), String::new()] {
            let found = activities(&before, &after, 10.0);
            assert_eq!((found[0].requests_per_second, found[0].read_bytes_per_second), (0.8, 4.0));
        }
        assert!(activities(&after, "", 10.0).is_empty(), "unmounted");
    }

    #[test]
    fn the_busiest_come_first_and_other_namespaces_are_left_out() {
        let mount = |namespace: &str, claim: &str, requests_per_second| Activity {
            namespace: namespace.into(),
            claim: claim.into(),
            requests_per_second,
            ..Activity::default()
        };
        let answers = vec![
            ("n-1".to_owned(), Ok(vec![mount("shop", "idle", 0.0), mount("shop", "busy", 9.0)])),
            ("n-2".to_owned(), Err("not ready".to_owned())),
            ("n-3".to_owned(), Ok(vec![mount("other", "x", 20.0)])),
        ];
        let claims = |top: &Top| top.mounts.iter().map(|mount| mount.claim.clone()).collect::<Vec<_>>();
        let top = Top::of(answers.clone(), Some("shop"));
        assert_eq!(claims(&top), ["busy", "idle"]);
        assert_eq!(top.unreachable["n-2"], "not ready");
        assert_eq!(claims(&Top::of(answers, None)), ["x", "busy", "idle"]);
    }
}
