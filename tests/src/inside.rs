//! The cluster that the suite runs in.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Profile};

use crate::{Seen, eventually};

/// How long an accepted pod may take to run, on a machine that also compiles.
const POD_WITHIN: Duration = Duration::from_mins(4);

/// Gives each test its own namespace.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A test's namespace in the cluster around it.
#[derive(Clone)]
pub struct Inside {
    pub cluster: Cluster,
    pub client: Client,
    pub namespace: String,
}

impl Inside {
    /// Connects to the cluster and creates a namespace, which is removed with the cluster.
    pub async fn join(test: &str) -> Self {
        let cluster = cluster();
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("the cluster's kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("{test}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        if matches!(cluster.plan().unwrap().profile, Profile::Control | Profile::Node) {
            let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
            eventually("the namespace's default account", POD_WITHIN, || async {
                Seen::some(accounts.get_opt("default").await.unwrap(), "no account")
            })
            .await;
        }
        Self { cluster, client, namespace }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a pod with this name and spec, and a grace period of one second: with none, a delete would return before its
    /// volumes are unmounted.
    pub async fn run(&self, name: &str, mut spec: Value) -> Pod {
        spec["terminationGracePeriodSeconds"] = json!(1);
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.pods().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    /// Waits until the pod is in this phase.
    pub async fn phase(&self, name: &str, phase: &str) {
        eventually(&format!("pod {name} is {phase}"), POD_WITHIN, || async {
            let status =
                self.pods().get_opt(name).await.unwrap().and_then(|pod| pod.status).unwrap_or_default();
            let is = status.phase.as_deref() == Some(phase);
            Seen::some(is.then_some(()), serde_json::to_string(&status).unwrap())
        })
        .await;
    }

    pub async fn log(&self, name: &str) -> String {
        self.pods().logs(name, &LogParams::default()).await.unwrap()
    }

    /// Deletes the pod and waits until it is gone and its volumes are unmounted.
    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
        eventually(&format!("pod {name} is gone"), POD_WITHIN, || async {
            let pod = self.pods().get_opt(name).await.unwrap();
            if pod.is_none() { Seen::Yes(()) } else { Seen::NotYet("it is there".to_owned()) }
        })
        .await;
    }
}

/// The cluster that `cargo xtask test` runs this suite in.
pub fn cluster() -> Cluster {
    let dir = std::env::var_os("S3_CSI_CLUSTER").map(PathBuf::from);
    let dir = dir.expect("this suite runs inside a cluster: cargo xtask test");
    let cluster = Cluster::at(&dir).unwrap();
    assert_eq!(cluster.init_process(), Some(1), "this suite runs inside {}: cargo xtask test", dir.display());
    cluster
}
