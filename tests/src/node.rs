//! The node service as a process of its own, with the rights it ships with, below a directory that stands in for the
//! kubelet's.

use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use contract::names::{DRIVER, source_on_node};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use node::mounts::Mounts;
use tempfile::TempDir;
use xtask::s3::{ALICE, ENDPOINT, REGION};

use crate::account::{API_SERVER, Account, NODE, install};
use crate::csi::Csi;
use crate::program::{Program, STARTS_WITHIN, probe};
use crate::{Seen, eventually};

/// The kubelet's directory. Dropping it unmounts everything below.
pub struct Kubelet(TempDir);

impl Default for Kubelet {
    fn default() -> Self {
        let folder = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["plugins", "plugins_registry", "pods"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }
}

impl Kubelet {
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn target(&self, pod_uid: &str, volume: &str) -> PathBuf {
        self.path().join(format!("pods/{pod_uid}/volumes/kubernetes.io~csi/{volume}/mount"))
    }

    pub fn source(&self, mountpoint_pod: &str) -> PathBuf {
        source_on_node(self.path(), mountpoint_pod)
    }

    pub fn csi_socket(&self) -> PathBuf {
        self.path().join("plugins").join(DRIVER).join("csi.sock")
    }

    pub fn registration_socket(&self) -> PathBuf {
        self.path().join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
    }

    /// How many mounts are upon each other at this path.
    pub fn mounts(path: &Path) -> usize {
        Mounts::default().table().unwrap().at(path).count()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        for mount in &Mounts::default().table().unwrap().0 {
            if mount.point.starts_with(self.0.path()) {
                let _ = rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

/// What the node service of the installed driver counts.
pub async fn metrics_of_installed(client: &Client) -> String {
    /// The chart's port for the node service's probes.
    const PROBES: u16 = 9808;
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
    let pods = pods.list(&ListParams::default().labels("app=s3-csi-node")).await.unwrap();
    let address = pods.items[0].status.as_ref().unwrap().pod_ip.as_ref().unwrap();
    probe(SocketAddr::new(address.parse().unwrap(), PROBES), "/metrics").1
}

pub struct NodeProgram {
    program: Program,
    pub csi: Csi,
}

impl Deref for NodeProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl NodeProgram {
    /// Starts it for the node of this name and waits until it answers.
    pub async fn start(client: &Client, node: &str, kubelet: &Kubelet, arguments: &[&str]) -> Self {
        Self::start_on(API_SERVER, client, node, kubelet, arguments).await
    }

    /// The same, with the API server at this address.
    pub async fn start_on(
        server: &str,
        client: &Client,
        node: &str,
        kubelet: &Kubelet,
        arguments: &[&str],
    ) -> Self {
        install(client).await;
        let program = Self::launch(&NODE, server, client, node, kubelet, arguments).await;
        let csi = eventually("the node's socket answers", STARTS_WITHIN, || async {
            match Csi::connect(&kubelet.csi_socket()).await {
                Ok(csi) => Seen::Yes(csi),
                Err(error) => Seen::NotYet(format!("{error}\n{}", program.log())),
            }
        })
        .await;
        Self { program, csi }
    }

    /// Starts it with the rights of this account and does not wait.
    pub async fn launch(
        account: &Account,
        server: &str,
        client: &Client,
        node: &str,
        kubelet: &Kubelet,
        arguments: &[&str],
    ) -> Program {
        let keys = kubelet.path().join("keys");
        let _ = fs::create_dir(&keys);
        fs::write(keys.join("access_key_id"), ALICE.access_key).unwrap();
        fs::write(keys.join("secret_access_key"), ALICE.secret_key).unwrap();
        let usual = [
            format!("--node-name={node}"),
            format!("--kubelet-path={}", kubelet.path().display()),
            format!("--credentials-dir={}", keys.display()),
            format!("--endpoint-url={ENDPOINT}"),
            format!("--region={REGION}"),
        ];
        let arguments = usual.into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned()));
        Program::launch("s3-csi-node", client, account, Some(node), server, arguments).await
    }

    /// Waits until it has ended.
    pub fn ended(mut self) -> std::process::ExitStatus {
        self.program.ended()
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(self) -> std::process::ExitStatus {
        self.program.stop()
    }
}
