//! One of the driver's programs as a separate process.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kube::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::account::Account;
use crate::memory_limit::MemoryLimit;
use crate::{Seen, eventually, inside};

/// Several programs start at once, on a busy machine.
pub const STARTS_WITHIN: Duration = Duration::from_mins(3);

/// A killed process that asks a mount which nothing serves at the moment ends when something does. The test may be about to see
/// to that.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Numbers log files and probe ports.
static NUMBER: AtomicU16 = AtomicU16::new(0);

/// Killed when dropped.
pub struct Program {
    name: &'static str,
    process: Child,
    log: PathBuf,
    probes: SocketAddr,
}

/// A program's response to one of its probe paths: the status line and the body.
pub fn probe(address: SocketAddr, path: &str) -> (String, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(STARTS_WITHIN)).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: probes\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let until = Instant::now() + ENDS_WITHIN;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Program {
    /// Starts it with this account, for this node if there is one, against the API server at this address, without waiting.
    pub async fn launch(
        name: &'static str,
        client: &Client,
        account: &Account,
        node: Option<&str>,
        server: &str,
        arguments: impl IntoIterator<Item = String>,
    ) -> Self {
        Self::launch_within(None, name, client, account, node, server, arguments).await
    }

    /// The same, with a memory limit.
    pub async fn launch_within(
        limit: Option<&MemoryLimit>,
        name: &'static str,
        client: &Client,
        account: &Account,
        node: Option<&str>,
        server: &str,
        arguments: impl IntoIterator<Item = String>,
    ) -> Self {
        let cluster = inside::cluster();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = cluster.log(&format!("{name}-{number}"));
        let probes = SocketAddr::from(([127, 0, 0, 1], 18080 + number));
        let programs =
            std::env::var_os("S3_CSI_PROGRAMS").map(PathBuf::from).expect("cargo xtask test sets it");
        let program = programs.join(name);
        let process = limit
            .map_or_else(|| Command::new(&program), |limit| limit.command(&program))
            .env("KUBECONFIG", account.kubeconfig(client, &cluster.authority(), server, node).await)
            .arg(format!("--probes-address={probes}"))
            .args(arguments)
            .stdin(Stdio::null())
            // Not inherited, because a reader of the suite's output would wait for a program that keeps running.
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { name, process, log, probes }
    }

    pub fn probe(&self, path: &str) -> (String, String) {
        probe(self.probes, path)
    }

    /// Where it serves its probes and metrics.
    pub fn address(&self) -> SocketAddr {
        self.probes
    }

    pub fn metrics(&self) -> String {
        self.probe("/metrics").1
    }

    /// Waits until its metrics have this sample: programs count after they have acted.
    pub async fn counts(&self, sample: &str) {
        eventually(&format!("{} counts `{sample}`", self.name), STARTS_WITHIN, || async {
            let metrics = self.metrics();
            Seen::some(metrics.contains(sample).then_some(()), metrics)
        })
        .await;
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log contains this.
    pub async fn says(&self, message: &str) {
        eventually(&format!("{} says `{message}`", self.name), STARTS_WITHIN, || async {
            let log = self.log();
            let said = log.contains(&format!("\"message\":\"{message}\""));
            Seen::some(said.then_some(()), xtask::command::tail(&log))
        })
        .await;
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Sends SIGTERM and waits until it has exited.
    pub fn stop(mut self) -> ExitStatus {
        self.terminate();
        self.ended()
    }
}
