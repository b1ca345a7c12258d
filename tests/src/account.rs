//! The service accounts of the driver's programs, with exactly the permissions that Helm gives them.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::chart::{self, Granted};
use crate::inside;
use crate::right::{Right, granted};
use crate::{Seen, eventually};

pub const MOUNTPOINT_NAMESPACE: &str = "mount-s3";
pub const RELEASE_NAMESPACE: &str = "kube-system";
/// Where the chart really is.
pub const API_SERVER: &str = "10.99.0.1:6443";
const SERVED_WITHIN: Duration = Duration::from_mins(1);
/// Objects of the chart whose part the tests play themselves. Their Mountpoint Pods violate the Pod Security level.
const PLAYED: &[&str] = &["DaemonSet", "Deployment", "Namespace"];

static INSTALLED: OnceCell<()> = OnceCell::const_new();

pub struct Account {
    pub name: Cow<'static, str>,
}

pub const CONTROLLER: Account = Account { name: Cow::Borrowed("s3-csi-driver-controller-sa") };
pub const NODE: Account = Account { name: Cow::Borrowed("s3-csi-driver-sa") };

impl Account {
    /// The user name at the API server.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{RELEASE_NAMESPACE}:{}", self.name)
    }

    /// The roles of the account if the chart is installed with these values.
    pub fn roles(&self, values: &[&str]) -> Vec<Granted> {
        chart::roles(&chart::rendered(&inside::cluster(), values), &self.name)
    }

    /// Another account with these roles of this one, under a name with this suffix. Returns when the API server knows them.
    pub async fn variant(&self, client: &Client, suffix: &str, roles: &[Granted]) -> Self {
        let name = format!("{}-{suffix}", self.name);
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        apply(&Api::<ServiceAccount>::namespaced(client.clone(), RELEASE_NAMESPACE), object).await;
        let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": RELEASE_NAMESPACE}]);
        for Granted { name, namespace, rights } in roles {
            let (group, name) = ("rbac.authorization.k8s.io", format!("{name}-{suffix}"));
            let granted: Vec<Value> = rights.iter().map(Right::rule).collect();
            let object = |kind: &str, field: &str, value: Value| {
                let version = format!("{group}/v1");
                json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, field: value})
            };
            let binding = |kind: &str, role: &str| {
                let mut binding = object(kind, "subjects", subjects.clone());
                binding["roleRef"] = json!({"apiGroup": group, "kind": role, "name": name});
                binding
            };
            if let Some(namespace) = namespace {
                let api = Api::<Role>::namespaced(client.clone(), namespace);
                apply(&api, object("Role", "rules", json!(granted))).await;
                let api = Api::<RoleBinding>::namespaced(client.clone(), namespace);
                apply(&api, binding("RoleBinding", "Role")).await;
            } else {
                let api = Api::<ClusterRole>::all(client.clone());
                apply(&api, object("ClusterRole", "rules", json!(granted))).await;
                let api = Api::<ClusterRoleBinding>::all(client.clone());
                apply(&api, binding("ClusterRoleBinding", "ClusterRole")).await;
            }
        }
        let account = Self { name: Cow::Owned(name) };
        for role in roles {
            let (user, place) = (account.user(), role.namespace.as_deref().unwrap_or("default"));
            eventually(&format!("{user} has its rights"), SERVED_WITHIN, || async {
                let has = granted(&user, place).await;
                Seen::some(has.is_superset(&role.rights).then_some(()), format!("{has:?}"))
            })
            .await;
        }
        account
    }

    /// A kubeconfig with a token of the account for the API server at this address, like the one the kubelet gives to a pod
    /// on this node. Without a node, the token belongs to no pod.
    pub async fn kubeconfig(
        &self,
        client: &Client,
        authority: &Path,
        server: &str,
        node: Option<&str>,
    ) -> PathBuf {
        let token = self.token(client, node).await;
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("https://{server}"), "certificate-authority": authority}}],
            "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": RELEASE_NAMESPACE}}],
        });
        let file = tempfile::Builder::new().prefix(&*self.name).tempfile_in("/run").unwrap();
        fs::write(file.path(), config.to_string()).unwrap();
        file.into_temp_path().keep().unwrap()
    }

    pub async fn token(&self, client: &Client, node: Option<&str>) -> String {
        let mut spec = json!({"audiences": [], "expirationSeconds": 7200});
        if let Some(node) = node {
            let pod = self.pod_on(client, node).await;
            spec["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()});
        }
        let request: TokenRequest = serde_json::from_value(json!({"spec": spec})).unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), RELEASE_NAMESPACE);
        let answer = accounts.create_token_request(&self.name, &PostParams::default(), &request).await;
        answer.unwrap().status.unwrap().token
    }

    async fn pod_on(&self, client: &Client, node: &str) -> Pod {
        let pods = Api::<Pod>::namespaced(client.clone(), RELEASE_NAMESPACE);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{}-{node}", self.name)},
            "spec": {
                "serviceAccountName": self.name, "nodeName": node, "automountServiceAccountToken": false,
                "containers": [{"name": "played", "image": "none"}],
            },
        });
        apply(&pods, pod).await
    }
}

/// What the chart installs without its programs: CRD, namespace, accounts with their permissions, policies.
pub async fn install(client: &Client) {
    INSTALLED.get_or_init(|| install_once(client)).await;
}

async fn install_once(client: &Client) {
    let definition =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/s3-csi/crds/mountpoints3podattachments.yaml");
    let definition: Value = serde_saphyr::from_str(&fs::read_to_string(definition).unwrap()).unwrap();
    apply(&Api::<CustomResourceDefinition>::all(client.clone()), definition).await;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MOUNTPOINT_NAMESPACE}});
    apply(&Api::<Namespace>::all(client.clone()), namespace).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    apply(&Api::<ServiceAccount>::namespaced(client.clone(), MOUNTPOINT_NAMESPACE), account).await;
    let cluster = inside::cluster();
    chart::apply(&cluster, &chart::rendered(&cluster, &[]), PLAYED);
    let attachments = Api::<MountpointS3PodAttachment>::all(client.clone());
    eventually("attachments are served", SERVED_WITHIN, || async {
        match attachments.list(&ListParams::default()).await {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::NotYet(error.to_string()),
        }
    })
    .await;
}

async fn apply<K>(api: &Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    api.patch(&name, &PatchParams::apply("tests").force(), &Patch::Apply(object)).await.unwrap()
}
