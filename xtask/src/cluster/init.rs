//! The node's first process: prepares the namespaces, starts the parts, says when the node is usable, and from then on
//! only buries orphans. When it dies the kernel ends every process of the node, and with them go its mounts and network.

use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rustix::process::{WaitOptions, wait};

use super::api::Api;
use super::isolate::isolate;
use super::parts::CONTAINERD_SOCKET;
use super::start::Starter;
use super::{Cluster, NODE_ADDRESS, Part, Profile, registry};
use crate::programs::Programs;
use crate::s3;

/// The last line of a successful start. The end of our output would not do: `unshare`, which waits for us, holds it open.
pub(crate) const USABLE: &str = "usable";

/// Runs in the place of the hidden command; never returns while the node lives.
pub fn run(dir: &Path) -> Result<()> {
    let cluster = Cluster::at(dir)?;
    let parts = match start(&cluster) {
        Ok(parts) => parts,
        Err(error) => {
            say(&format!("        ✗ {error:#}"));
            std::process::exit(1);
        }
    };
    say(USABLE);
    loop {
        match wait(WaitOptions::empty()) {
            // A node that has lost a part is not what it was: the next `up` starts it anew.
            Ok(Some((pid, status))) if parts.contains(&pid.as_raw_nonzero().get().unsigned_abs()) => {
                eprintln!("part with process {pid:?} ended: {status:?}");
                let _ = fs::remove_file(cluster.usable());
            }
            Ok(_) => {}
            // Without children there is nothing to wait for, now or later.
            Err(_) => std::thread::park(),
        }
    }
}

/// Returns the processes of the parts.
fn start(cluster: &Cluster) -> Result<Vec<u32>> {
    let began = Instant::now();
    let report = |what: &str| say(&format!("{:>6.1}s ✓ {what}", began.elapsed().as_secs_f64()));
    let profile = cluster.plan()?.profile;
    let programs = cluster.programs()?;
    isolate(cluster)?;
    report("namespaces");

    fs::create_dir_all(cluster.dir().join("state/s3/data"))?;
    fs::create_dir_all(cluster.dir().join("state/s3/accounts"))?;
    let mut starter = Starter::new(cluster, &programs);
    starter.start(Part::first(profile))?;
    if profile == Profile::Node {
        starter.until(Part::Containerd, || UnixStream::connect(CONTAINERD_SOCKET).is_ok())?;
        cluster.import_images(profile)?;
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
            starter.until(Part::Kubelet, || api.usable())?;
            report("node");
        }
    }
    fs::write(cluster.usable(), "")?;
    Ok(starter.processes())
}

fn create_accounts(programs: &Programs) -> Result<()> {
    s3::ACCOUNTS
        .iter()
        .try_for_each(|account| s3::accounts::create(programs, account.access_key, account.secret_key))
}

/// `up` may have been killed; then nobody listens, and that is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
