//! When containers were created, started and ended, according to containerd.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use xtask::command::capture;

use super::{Moments, What, seconds};

/// `2026-01-01 00:00:00.123456789 +0000 UTC k8s.io /tasks/start {"container_id":"…","pid":1}`
pub(super) fn follow(moments: &Moments) -> Child {
    let moments = Arc::clone(moments);
    let mut events = ctr()
        .arg("events")
        .stdout(Stdio::piped())
        // Not inherited, because a reader of our output would wait for this process as well.
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(events.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let mut words = line.splitn(7, ' ');
            let (Some(day), Some(time)) = (words.next(), words.next()) else { continue };
            let (Some(topic), Some(body)) = (words.nth(3), words.next()) else { continue };
            let what = match topic {
                "/tasks/create" => What::TaskCreated,
                "/tasks/start" => What::Started,
                "/tasks/exit" => What::Ended,
                _ => continue,
            };
            let Ok(at) = format!("{day}T{time}Z").parse::<Timestamp>() else { continue };
            let body: Value = serde_json::from_str(body).unwrap_or_default();
            if let Some(container) = body["container_id"].as_str() {
                moments.lock().unwrap().entry((what, container.to_owned())).or_insert(seconds(at));
            }
        }
    });
    events
}

/// The container that keeps the namespaces of the pod to which this one belongs.
pub(super) fn sandbox_of(container: &str) -> String {
    let info = capture(ctr().args(["containers", "info", container])).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    let sandbox = info["Spec"]["annotations"]["io.kubernetes.cri.sandbox-id"].as_str();
    sandbox.unwrap_or_else(|| panic!("no sandbox in {info}")).to_owned()
}

fn ctr() -> Command {
    let mut command = Command::new("ctr");
    command.args(["--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io"]);
    command
}
