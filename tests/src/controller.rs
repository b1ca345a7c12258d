//! The controller as a separate process, with exactly the permissions it ships with.

use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use xtask::command::run;
use xtask::s3::{ALICE, ENDPOINT};

use crate::account::{API_SERVER, Account, CONTROLLER, RELEASE_NAMESPACE, install};
use crate::cluster;
use crate::memory_limit::MemoryLimit;
use crate::program::{Program, probe};

/// Of the leader.
pub const LEASE: &str = "s3-csi-controller";

/// Most tests share one controller. Tests that stop or restart a controller run without any other.
static SHARED: RwLock<Option<Controller>> = RwLock::const_new(None);

pub async fn shared(client: &Client) -> RwLockReadGuard<'static, Option<Controller>> {
    loop {
        let shared = SHARED.read().await;
        if shared.is_some() {
            return shared;
        }
        drop(shared);
        let mut shared = SHARED.write().await;
        if shared.is_none() {
            release_leadership();
            *shared = Some(Controller::start(client, &[]).await);
        }
    }
}

/// While this is held, no controller runs unless the holder starts one.
pub async fn none() -> RwLockWriteGuard<'static, Option<Controller>> {
    let mut shared = SHARED.write().await;
    *shared = None;
    release_leadership();
    shared
}

/// Of a controller that was killed, so that the next one does not wait until its Lease has expired. None runs now.
fn release_leadership() {
    let mut kubectl = cluster().kubectl().unwrap();
    kubectl.args(["delete", "lease", LEASE, "--namespace", RELEASE_NAMESPACE, "--ignore-not-found"]);
    run(&mut kubectl).unwrap();
}

pub struct Controller(Program);

impl Deref for Controller {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Controller {
    /// Starts it and waits until it is the leader.
    pub async fn start(client: &Client, arguments: &[&str]) -> Self {
        let controller = Self::launch(client, arguments).await;
        controller.says("became leader").await;
        controller
    }

    /// Starts it without waiting.
    pub async fn launch(client: &Client, arguments: &[&str]) -> Self {
        Self::launch_confined(None, &CONTROLLER, client, arguments).await
    }

    /// The same, with a memory limit.
    pub async fn launch_within(limit: &MemoryLimit, client: &Client, arguments: &[&str]) -> Self {
        Self::launch_confined(Some(limit), &CONTROLLER, client, arguments).await
    }

    /// The same, with other permissions.
    pub async fn launch_as(account: &Account, client: &Client, arguments: &[&str]) -> Self {
        Self::launch_confined(None, account, client, arguments).await
    }

    async fn launch_confined(
        limit: Option<&MemoryLimit>,
        account: &Account,
        client: &Client,
        arguments: &[&str],
    ) -> Self {
        install(client).await;
        let usual = [
            "--mountpoint-image=s3-csi.test/busybox:dev",
            "--mountpoint-image-pull-policy=Never",
            "--mountpoint-container-command=/bin/busybox",
            "--log-level=info,controller=debug",
        ];
        let mut all: Vec<String> =
            usual.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
        if !all.iter().any(|argument| argument.starts_with("--endpoint-url=")) {
            all.push(format!("--endpoint-url={ENDPOINT}"));
        }
        all.push(format!("--credentials-dir={}", driver_keys().display()));
        let name = "s3-csi-controller";
        Self(Program::launch_within(limit, name, client, account, None, API_SERVER, all).await)
    }

    /// Sends SIGTERM and waits until it has exited.
    pub fn stop(self) -> std::process::ExitStatus {
        self.0.stop()
    }
}

/// The metrics of the installed controllers, of which only the leader counts anything.
pub async fn metrics_of_installed(client: &Client) -> String {
    /// The chart's port for the controller's probes.
    const PROBES: u16 = 8080;
    let pods = Api::<Pod>::namespaced(client.clone(), RELEASE_NAMESPACE);
    let pods = pods.list(&ListParams::default().labels("app=s3-csi-controller")).await.unwrap();
    let addresses = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok());
    addresses.map(|address| probe(SocketAddr::new(address, PROBES), "/metrics").1).collect()
}

/// A folder with Alice's keys, in the form of the mounted Secret of the driver.
fn driver_keys() -> PathBuf {
    let folder = PathBuf::from("/run/controller-keys");
    fs::create_dir_all(&folder).unwrap();
    for (key, value) in [("access_key_id", ALICE.access_key), ("secret_access_key", ALICE.secret_key)] {
        fs::write(folder.join(key), value).unwrap();
    }
    folder
}
