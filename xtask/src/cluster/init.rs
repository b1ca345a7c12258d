//! PID 1 of a node: prepares the namespaces, starts the components, reports when the node is ready, and from then on only
//! reaps orphans. When it exits, the kernel kills every process of the node, and its mounts and network disappear.

use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;
use rustix::process::{WaitOptions, wait};

use super::api::Api;
use super::isolate::isolate;
use super::parts::CONTAINERD_SOCKET;
use super::start::Starter;
use super::{Cluster, NODE_ADDRESS, Node, Part, Profile, network, registry};
use crate::programs::Programs;
use crate::s3;

/// The last line of a successful start. The end of our output cannot signal it, because `unshare` keeps the output open.
pub(crate) const USABLE: &str = "usable";

/// The hidden command. It does not return while the node runs.
pub fn run(dir: &Path, node: Option<&str>) -> Result<()> {
    let cluster = Cluster::at(dir)?;
    let node = node.map_or(Ok(Node::FIRST), |name| cluster.node(name))?;
    let started = if node == Node::FIRST { start_first(&cluster) } else { start_other(&cluster, node) };
    let parts = match started {
        Ok(parts) => parts,
        Err(error) => {
            say(&format!("        ✗ {error:#}"));
            std::process::exit(1);
        }
    };
    say(USABLE);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if parts.contains(&pid.as_raw_nonzero().get().unsigned_abs()) => {
                eprintln!("part with process {pid:?} ended: {status:?}");
            }
            Ok(_) => {}
            // Without children there is nothing left to wait for.
            Err(_) => std::thread::park(),
        }
    }
}

/// Returns the processes of the components.
fn start_first(cluster: &Cluster) -> Result<Vec<u32>> {
    let began = Instant::now();
    let report = |what: &str| say(&format!("{:>6.1}s ✓ {what}", began.elapsed().as_secs_f64()));
    let profile = cluster.plan()?.profile;
    let programs = cluster.programs()?;
    isolate(cluster, Node::FIRST)?;
    report("namespaces");
    let others = start_others(cluster)?;

    fs::create_dir_all(cluster.dir().join("state/s3/data"))?;
    fs::create_dir_all(cluster.dir().join("state/s3/accounts"))?;
    let mut starter = Starter::new(cluster, Node::FIRST, &programs);
    starter.start(Part::first(profile))?;
    if profile == Profile::Node {
        starter.until(Part::Containerd, || UnixStream::connect(CONTAINERD_SOCKET).is_ok())?;
        cluster.import_images_on(Node::FIRST)?;
        report("containerd, images");
    }
    starter.until(Part::Names, || (s3::HOST, 80).to_socket_addrs().is_ok())?;
    for (part, port) in [(Part::S3, 80), (Part::S3Tls, 443)] {
        starter.until(part, || TcpStream::connect((NODE_ADDRESS, port)).is_ok())?;
    }
    create_accounts(&programs)?;
    if profile == Profile::Node {
        registry::publish(cluster)?;
    }
    report("S3 server");
    if profile != Profile::Kernel {
        let api = Api::as_admin(cluster)?;
        starter.until(Part::ApiServer, || api.ready())?;
        report("API server");
        starter.start(Part::second(profile))?;
        if profile == Profile::Node {
            starter.until(Part::Kubelet, || api.usable(Node::FIRST, None))?;
            report("node");
            for (node, other) in others {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                report(&node.name());
            }
        }
    }
    fs::write(cluster.usable(Node::FIRST), "")?;
    Ok(starter.processes())
}

/// Starts the other nodes while the first starts; they wait for its API server.
fn start_others(cluster: &Cluster) -> Result<Vec<(Node, JoinHandle<Result<()>>)>> {
    let start = |node: Node| {
        network::plug_in(node)?;
        let cluster = cluster.clone();
        Ok((node, std::thread::spawn(move || cluster.launch(node, |_| {}))))
    };
    cluster.nodes()?.into_iter().skip(1).map(start).collect()
}

fn start_other(cluster: &Cluster, node: Node) -> Result<Vec<u32>> {
    let since = Timestamp::now();
    let programs = cluster.programs()?;
    isolate(cluster, node)?;
    let mut starter = Starter::new(cluster, node, &programs);
    starter.start(&[Part::Containerd])?;
    starter.until(Part::Containerd, || UnixStream::connect(CONTAINERD_SOCKET).is_ok())?;
    // A node that was ready before has them on its disk.
    if !cluster.usable(node).exists() {
        cluster.import_images_on(node)?;
    }
    let api = Api::as_admin(cluster)?;
    starter.until(Part::Containerd, || api.ready())?;
    starter.start(&[Part::Kubelet, Part::KubeProxy])?;
    starter.until(Part::Kubelet, || api.usable(node, Some(since)))?;
    fs::write(cluster.usable(node), "")?;
    Ok(starter.processes())
}

fn create_accounts(programs: &Programs) -> Result<()> {
    s3::ACCOUNTS
        .iter()
        .try_for_each(|account| s3::accounts::create(programs, account.access_key, account.secret_key))
}

/// If `up` was killed, nothing reads the output, which is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
