//! The controller as a process of its own, with exactly the rights it ships with.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Seen, eventually, inside};

pub const MOUNTPOINT_NAMESPACE: &str = "mount-s3";
pub const RELEASE_NAMESPACE: &str = "kube-system";
pub const ACCOUNT: &str = "s3-csi-driver-controller-sa";
/// As the API server calls the account.
pub const USER: &str = "system:serviceaccount:kube-system:s3-csi-driver-controller-sa";
const STARTS_WITHIN: Duration = Duration::from_secs(30);

static NUMBER: AtomicU16 = AtomicU16::new(0);
static INSTALLED: OnceCell<()> = OnceCell::const_new();
/// Tests that need nothing special share one; those that do something to a controller have none beside their own.
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
            *shared = Some(Controller::start(client, &[]).await);
        }
    }
}

/// No controller runs while this is held, unless its holder starts one.
pub async fn none() -> RwLockWriteGuard<'static, Option<Controller>> {
    let mut shared = SHARED.write().await;
    *shared = None;
    shared
}

/// Killed when dropped.
pub struct Controller {
    process: Child,
    log: PathBuf,
    probes: SocketAddr,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Controller {
    /// Starts it and waits until it acts.
    pub async fn start(client: &Client, arguments: &[&str]) -> Self {
        let controller = Self::launch(client, arguments).await;
        controller.says("acting").await;
        controller
    }

    /// Starts it and does not wait.
    pub async fn launch(client: &Client, arguments: &[&str]) -> Self {
        install(client).await;
        let cluster = inside::cluster();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = cluster.log(&format!("controller-{number}"));
        let probes = SocketAddr::from(([127, 0, 0, 1], 18080 + number));
        let programs =
            std::env::var_os("S3_CSI_PROGRAMS").map(PathBuf::from).expect("cargo xtask test sets it");
        let process = Command::new(programs.join("s3-csi-controller"))
            .env("KUBECONFIG", kubeconfig(client, &cluster.authority()).await)
            .args(["--mountpoint-image=s3-csi.test/busybox:dev", "--mountpoint-image-pull-policy=Never"])
            .args(["--mountpoint-container-command=/bin/busybox", "--log-level=info,controller=debug"])
            .arg(format!("--probes-address={probes}"))
            .args(arguments)
            .stdin(Stdio::null())
            // Not ours: whoever reads the suite's output to its end would wait for a controller that lives on.
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { process, log, probes }
    }

    /// What it answers on one of its probes' paths: the status line and the body.
    pub fn probe(&self, path: &str) -> (String, String) {
        let mut connection = TcpStream::connect(self.probes).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: probes\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }

    pub fn metrics(&self) -> String {
        self.probe("/metrics").1
    }

    /// Waits until its log says so.
    pub async fn says(&self, message: &str) {
        eventually(&format!("the controller says `{message}`"), STARTS_WITHIN, || async {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let said = log.contains(&format!("\"message\":\"{message}\""));
            Seen::some(said.then_some(()), xtask::command::tail(&log))
        })
        .await;
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(mut self) -> std::process::ExitStatus {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap()
    }
}

/// A file of the chart.
fn chart<T: DeserializeOwned>(file: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/s3-csi").join(file);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub fn rules(file: &str) -> Vec<PolicyRule> {
    chart(&format!("rbac/{file}.yaml"))
}

/// Definition, namespace and account with its rights: what the chart will install.
pub async fn install(client: &Client) {
    INSTALLED.get_or_init(|| install_once(client)).await;
}

async fn install_once(client: &Client) {
    let definition: CustomResourceDefinition = chart("crds/mountpoints3podattachments.yaml");
    apply(&Api::<CustomResourceDefinition>::all(client.clone()), json!(definition)).await;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MOUNTPOINT_NAMESPACE}});
    apply(&Api::<Namespace>::all(client.clone()), namespace).await;
    for namespace in [MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE] {
        for name in ["default", ACCOUNT] {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            apply(&Api::<ServiceAccount>::namespaced(client.clone(), namespace), account).await;
        }
    }
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    let subjects = json!([{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": RELEASE_NAMESPACE}]);
    let role = |kind: &str, rules: Vec<PolicyRule>| json!({"apiVersion": version, "kind": kind, "metadata": {"name": ACCOUNT}, "rules": rules});
    let binding = |kind: &str, role: &str| {
        json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": ACCOUNT}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": role, "name": ACCOUNT},
        })
    };
    apply(&Api::<ClusterRole>::all(client.clone()), role("ClusterRole", rules("controller-cluster"))).await;
    apply(&Api::<ClusterRoleBinding>::all(client.clone()), binding("ClusterRoleBinding", "ClusterRole"))
        .await;
    for (namespace, file) in [
        (MOUNTPOINT_NAMESPACE, "controller-mountpoint-namespace"),
        (RELEASE_NAMESPACE, "controller-release-namespace"),
    ] {
        apply(&Api::<Role>::namespaced(client.clone(), namespace), role("Role", rules(file))).await;
        apply(&Api::<RoleBinding>::namespaced(client.clone(), namespace), binding("RoleBinding", "Role"))
            .await;
    }
    let attachments = Api::<contract::attachment::MountpointS3PodAttachment>::all(client.clone());
    eventually("attachments are served", STARTS_WITHIN, || async {
        match attachments.list(&kube::api::ListParams::default()).await {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        }
    })
    .await;
}

async fn apply<K>(api: &Api<K>, object: serde_json::Value)
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    api.patch(&name, &PatchParams::apply("tests").force(), &Patch::Apply(object)).await.unwrap();
}

/// A file with a token of the controller's account, as its pod would have it.
async fn kubeconfig(client: &Client, authority: &Path) -> PathBuf {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), RELEASE_NAMESPACE);
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 7200}})).unwrap();
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await.unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": "https://10.99.0.1:6443", "certificate-authority": authority}}],
        "users": [{"name": "it", "user": {"token": answer.status.unwrap().token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": RELEASE_NAMESPACE}}],
    });
    let file = PathBuf::from("/run/controller.kubeconfig");
    fs::write(&file, config.to_string()).unwrap();
    file
}
