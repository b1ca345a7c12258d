//! Runs this program inside the driver's containers, where it lies in the image, by way of `kubectl exec`: with the user's own
//! rights, and without a port that others could reach.

use std::collections::BTreeSet;
use std::io::{Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::flags::{ClusterFlags, InsideFlags};
use crate::installation::Role;
use crate::self_check::SelfReport;
use crate::snapshot::Snapshot;
use crate::top::Activity;
use crate::workload::{is_ready, node};

/// Three buckets at eight seconds each, and the time to get there.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How many pods are asked at once.
const AT_ONCE: usize = 8;
/// How many are watched at once, which takes them next to no work.
const WATCHED_AT_ONCE: usize = 32;
/// Where the image has this program.
const PROGRAM: &str = "/bin/kubectl-s3";
/// One may be missing for reasons of its own; a few tell more.
const MOST_BUCKETS: usize = 3;

/// What one container said.
#[derive(Clone, Debug)]
pub struct Inside {
    pub role: Role,
    /// `controller POD` or `node NAME`.
    pub object: String,
    /// Namespace and name.
    pub pod: String,
    pub report: Result<SelfReport, String>,
}

/// Asks every controller, and the node services of some nodes.
pub async fn ask_all(
    cluster: &ClusterFlags,
    flags: &InsideFlags,
    snapshot: &Snapshot,
    authorities: Option<&str>,
) -> Vec<Inside> {
    let controllers = snapshot.controllers.iter().filter(|pod| is_ready(pod));
    let controllers = controllers.map(|pod| (Role::Controller, pod));
    let nodes = snapshot.node_services.iter().filter(|pod| is_ready(pod)).take(flags.most_nodes);
    let asked = controllers.chain(nodes.map(|pod| (Role::Node, pod)));
    let buckets = buckets(snapshot);
    let asked: Vec<_> = asked.map(|(role, pod)| ask(cluster, role, pod, &buckets, authorities)).collect();
    futures::stream::iter(asked).buffered(AT_ONCE).collect().await
}

/// What the mounts of these nodes do, by node.
pub async fn watch_all(
    cluster: &ClusterFlags,
    snapshot: &Snapshot,
    nodes: &BTreeSet<String>,
    seconds: u64,
) -> Vec<(String, Result<Vec<Activity>, String>)> {
    let within = ANSWER_WITHIN + Duration::from_secs(seconds);
    let watch = async |name: &String| {
        let is_it = |pod: &&Pod| is_ready(pod) && node(pod) == Some(name.as_str());
        let Some(pod) = snapshot.node_services.iter().find(is_it) else {
            return (name.clone(), Err("it has none that is ready".to_owned()));
        };
        let mut command = inside(cluster, pod, false);
        command.args(["self-top", "--seconds", &seconds.to_string()]);
        let watched = tokio::task::spawn_blocking(move || run(command, None, within)).await;
        let said = watched.unwrap_or_else(|error| Err(error.to_string()));
        let understood = said
            .and_then(|said| serde_json::from_str::<Vec<Activity>>(&said).map_err(|error| error.to_string()));
        (name.clone(), understood)
    };
    let watched: Vec<_> = nodes.iter().map(watch).collect();
    futures::stream::iter(watched).buffered(WATCHED_AT_ONCE).collect().await
}

/// Buckets of volumes that are mounted with the driver's keys.
fn buckets(snapshot: &Snapshot) -> Vec<String> {
    let mut buckets: Vec<String> = Vec::new();
    for volume in
        snapshot.volumes.iter().filter(|volume| volume.uses_driver_keys() && volume.phase == "Bound")
    {
        if buckets.len() < MOST_BUCKETS && !buckets.contains(&volume.bucket) {
            buckets.push(volume.bucket.clone());
        }
    }
    buckets
}

async fn ask(
    cluster: &ClusterFlags,
    role: Role,
    pod: &Pod,
    buckets: &[String],
    authorities: Option<&str>,
) -> Inside {
    let object = match role {
        Role::Controller => format!("controller {}", pod.name_any()),
        Role::Node => format!("node {}", node(pod).unwrap_or_default()),
    };
    // The controller has its own in a file.
    let authorities = authorities.filter(|_| role == Role::Node).map(str::to_owned);
    let command = self_check(cluster, pod, buckets, authorities.is_some());
    let asked = tokio::task::spawn_blocking(move || {
        let begun = Timestamp::now();
        understand(&run(command, authorities, ANSWER_WITHIN)?, begun)
    });
    let report = asked.await.unwrap_or_else(|error| Err(error.to_string()));
    let pod = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    Inside { role, object, pod, report }
}

fn understand(said: &str, asked: Timestamp) -> Result<SelfReport, String> {
    let mut report: SelfReport =
        serde_json::from_str(said).map_err(|error| format!("cannot understand the self-check: {error}"))?;
    // In the middle between question and answer.
    let middle = asked.checked_add(Timestamp::now().duration_since(asked) / 2);
    report.off_by = middle.ok().map(|middle| report.time.duration_since(middle));
    Ok(report)
}

fn self_check(cluster: &ClusterFlags, pod: &Pod, buckets: &[String], has_authorities: bool) -> Command {
    let mut command = inside(cluster, pod, has_authorities);
    command.arg("self-check");
    command.args(buckets.iter().flat_map(|bucket| ["--bucket", bucket]));
    if has_authorities {
        command.arg("--authorities-from-stdin");
    }
    command
}

/// This program in the pod's first container.
fn inside(cluster: &ClusterFlags, pod: &Pod, has_input: bool) -> Command {
    let mut command = Command::new("kubectl");
    if let Some(path) = &cluster.kubeconfig {
        command.arg("--kubeconfig").arg(path);
    }
    if let Some(context) = &cluster.context {
        command.args(["--context", context]);
    }
    let container =
        pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|container| container.name.clone());
    command.args(["exec", "--namespace", &pod.namespace().unwrap_or_default(), &pod.name_any()]);
    command.args(["--container", &container.unwrap_or_default()]);
    if has_input {
        command.arg("--stdin");
    }
    command.args(["--", PROGRAM]);
    command
}

/// What it prints.
fn run(mut command: Command, input: Option<String>, within: Duration) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start kubectl: {error}"))?;
    // A pipe holds 64 KiB: writing more blocks for as long as the child does not read, which the deadline must end. A child
    // that has ended already says why.
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        thread::spawn(move || pipe.write_all(input.as_bytes()));
    }
    let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let succeeded = wait(&mut child, within)?;
    let read = |thread: JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, errors) = (read(out), read(errors));
    if succeeded { Ok(out) } else { Err(errors.trim().to_owned()) }
}

fn wait(child: &mut Child, within: Duration) -> Result<bool, String> {
    let deadline = Instant::now() + within;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", within.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_string(&mut text);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::volume;
    use crate::why::scene::{driver_pod, scene};
    use serde_json::json;

    #[test]
    fn kubectl_is_called_as_the_user_calls_it() {
        let cluster = ClusterFlags {
            context: Some("prod".into()),
            kubeconfig: Some("/k".into()),
            ..ClusterFlags::default()
        };
        let command = self_check(&cluster, &driver_pod("s3-csi-node-1", true), &["b".to_owned()], true);
        let arguments: Vec<&str> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        let expected = "--kubeconfig /k --context prod exec --namespace kube-system s3-csi-node-1 --container main --stdin -- \
                        /bin/kubectl-s3 self-check --bucket b --authorities-from-stdin";
        assert_eq!(arguments.join(" "), expected);
    }

    /// More than a pipe holds.
    fn long_input() -> String {
        "x".repeat(1 << 20)
    }

    #[test]
    fn a_program_that_reads_nothing_is_not_waited_for() {
        let mut stalled = Command::new("sleep");
        stalled.arg("600");
        let said = run(stalled, Some(long_input()), Duration::ZERO);
        assert_eq!(said, Err("no answer within 0 s".to_owned()));
    }

    #[test]
    fn all_of_the_input_arrives_and_all_of_the_output_returns() {
        assert_eq!(run(Command::new("cat"), Some(long_input()), ANSWER_WITHIN), Ok(long_input()));
    }

    #[test]
    fn a_few_buckets_of_the_drivers_keys_are_asked_for() {
        let mut snapshot = scene();
        let own = volume(|volume| {
            volume["spec"]["csi"]["volumeAttributes"]["bucketName"] = json!("own");
            volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "ns", "name": "keys"});
        });
        snapshot.volumes.extend([own, volume(|_| {})]);
        assert_eq!(buckets(&snapshot), ["bucket"]);
    }
}
