//! Makes a part fail, and does what its supervisor would do then.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rustix::process::{Pid, Signal, kill_process};
use xtask::cluster::{Boot, Cluster, Node, Part as NodePart};

use super::matrix::How;
use crate::processes::processes;

/// Longer than most deadlines between the parts, shorter than those after which a silent mount is aborted (60 s).
pub(super) const STOPPED_FOR: Duration = Duration::from_secs(20);
/// Until a supervisor such as systemd starts a component again.
const OFF_FOR: Duration = Duration::from_secs(1);
/// What fails.
pub(super) enum Target {
    /// A program in a container, which the kubelet restarts.
    Program {
        uid: String,
        program: &'static str,
    },
    /// Components of a node.
    Components(Node, &'static [NodePart]),
    Node(Node),
}

impl Target {
    pub(super) fn program(pod: &Pod, program: &'static str) -> Self {
        Self::Program { uid: pod.uid().unwrap(), program }
    }

    /// Returns when it works again, as far as that is a supervisor's task. False if there is no such process.
    pub(super) fn fail(&self, cluster: &Cluster, how: How) -> Result<bool> {
        let processes = self.processes(cluster)?;
        match (self, how) {
            (Self::Program { .. }, How::Kill) => signal(&processes, Signal::KILL),
            (Self::Components(node, parts), How::Kill) => {
                for part in *parts {
                    cluster.stop_on(*node, *part)?;
                }
                sleep(OFF_FOR);
                for part in *parts {
                    cluster.start_on(*node, *part)?;
                }
            }
            (Self::Node(node), How::Kill) => {
                cluster.stop_node(*node)?;
                cluster.start_node(*node, &Boot::default())?;
                return Ok(true);
            }
            (Self::Node(node), How::Stop) => {
                cluster.freeze(*node)?;
                sleep(STOPPED_FOR);
                cluster.thaw(*node)?;
                return Ok(true);
            }
            (Self::Program { .. } | Self::Components(..), How::Stop) => {
                signal(&processes, Signal::STOP);
                sleep(STOPPED_FOR);
                signal(&processes, Signal::CONT);
            }
        }
        Ok(!processes.is_empty())
    }

    /// The processes that are running now.
    pub(super) fn processes(&self, cluster: &Cluster) -> Result<Vec<Pid>> {
        match self {
            Self::Program { uid, program } => Ok(in_pod(program, uid)),
            // Those of the S3 server have the same program.
            Self::Components(node, parts) => cluster.processes_of(*node, parts[0]),
            Self::Node(_) => Ok(Vec::new()),
        }
    }
}

fn in_pod(program: &str, uid: &str) -> Vec<Pid> {
    let is_there = |process: &u32| {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        groups.contains(uid)
    };
    let found = processes(program, None).into_iter().filter(is_there);
    found.filter_map(|process| Pid::from_raw(i32::try_from(process).ok()?)).collect()
}

fn signal(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended meanwhile: by itself, or because a probe of the kubelet failed.
        let _ = kill_process(*process, signal);
    }
}
