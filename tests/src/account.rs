//! The accounts of the driver's programs, with exactly the rights that the chart gives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::{Seen, eventually};

pub const MOUNTPOINT_NAMESPACE: &str = "mount-s3";
pub const RELEASE_NAMESPACE: &str = "kube-system";
/// Where it really is.
pub const API_SERVER: &str = "10.99.0.1:6443";
const SERVED_WITHIN: Duration = Duration::from_mins(1);

static INSTALLED: OnceCell<()> = OnceCell::const_new();

pub struct Account {
    /// Begins the names of its files of rules.
    role: &'static str,
    pub name: &'static str,
}

pub const CONTROLLER: Account = Account { role: "controller", name: "s3-csi-driver-controller-sa" };
pub const NODE: Account = Account { role: "node", name: "s3-csi-driver-sa" };

/// A file of the chart.
fn chart<T: DeserializeOwned>(file: &str) -> Option<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/s3-csi").join(file);
    let text = fs::read_to_string(path).ok()?;
    Some(serde_saphyr::from_str(&text).unwrap())
}

impl Account {
    /// As the API server calls it.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{RELEASE_NAMESPACE}:{}", self.name)
    }

    pub fn rules_everywhere(&self) -> Vec<PolicyRule> {
        let files = ["cluster", "provisioning", "provisioning-secrets"];
        let rules = files.map(|file| chart::<Vec<PolicyRule>>(&format!("rbac/{}-{file}.yaml", self.role)));
        rules.into_iter().flatten().flatten().collect()
    }

    /// Beyond those, none in most namespaces.
    pub fn rules_in(&self, namespace: &str) -> Vec<PolicyRule> {
        let place = if namespace == MOUNTPOINT_NAMESPACE { "mountpoint" } else { "release" };
        chart(&format!("rbac/{}-{place}-namespace.yaml", self.role)).unwrap_or_default()
    }

    async fn install(&self, client: &Client) {
        let name = self.name;
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        apply(&Api::<ServiceAccount>::namespaced(client.clone(), RELEASE_NAMESPACE), object).await;
        let group = "rbac.authorization.k8s.io";
        let version = "rbac.authorization.k8s.io/v1";
        let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": RELEASE_NAMESPACE}]);
        let role = |kind: &str, rules: Vec<PolicyRule>| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "rules": rules});
        let binding = |kind: &str, role: &str| {
            json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": name}, "subjects": subjects,
                "roleRef": {"apiGroup": group, "kind": role, "name": name},
            })
        };
        apply(&Api::<ClusterRole>::all(client.clone()), role("ClusterRole", self.rules_everywhere())).await;
        apply(&Api::<ClusterRoleBinding>::all(client.clone()), binding("ClusterRoleBinding", "ClusterRole"))
            .await;
        for namespace in [MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE] {
            let rules = role("Role", self.rules_in(namespace));
            apply(&Api::<Role>::namespaced(client.clone(), namespace), rules).await;
            apply(&Api::<RoleBinding>::namespaced(client.clone(), namespace), binding("RoleBinding", "Role"))
                .await;
        }
    }

    /// A file with a token of the account, as its pod would have it, for the API server at this address.
    pub async fn kubeconfig(&self, client: &Client, authority: &Path, server: &str) -> PathBuf {
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), RELEASE_NAMESPACE);
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 7200}})).unwrap();
        let answer =
            accounts.create_token_request(self.name, &PostParams::default(), &request).await.unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("https://{server}"), "certificate-authority": authority}}],
            "users": [{"name": "it", "user": {"token": answer.status.unwrap().token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": RELEASE_NAMESPACE}}],
        });
        let file = tempfile::Builder::new().prefix(self.name).tempfile_in("/run").unwrap();
        fs::write(file.path(), config.to_string()).unwrap();
        file.into_temp_path().keep().unwrap()
    }
}

/// Definition, namespace and accounts with their rights: what the chart installs.
pub async fn install(client: &Client) {
    INSTALLED.get_or_init(|| install_once(client)).await;
}

async fn install_once(client: &Client) {
    let definition: CustomResourceDefinition =
        chart("crds/mountpoints3podattachments.yaml").expect("the chart has the definition");
    apply(&Api::<CustomResourceDefinition>::all(client.clone()), json!(definition)).await;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MOUNTPOINT_NAMESPACE}});
    apply(&Api::<Namespace>::all(client.clone()), namespace).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    apply(&Api::<ServiceAccount>::namespaced(client.clone(), MOUNTPOINT_NAMESPACE), account).await;
    CONTROLLER.install(client).await;
    NODE.install(client).await;
    let attachments = Api::<contract::attachment::MountpointS3PodAttachment>::all(client.clone());
    eventually("attachments are served", SERVED_WITHIN, || async {
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
