//! How the driver was installed, from its `Deployment` and `DaemonSet`.

use std::collections::{BTreeMap, BTreeSet};

use contract::names::MOUNTPOINT_NAMESPACE;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt;

use crate::secret::{Renamed, SecretName};

/// Names that the chart gives.
pub const CONTROLLER: &str = "s3-csi-controller";
pub const NODE_SERVICE: &str = "s3-csi-node";
/// Where the image has the programs.
const PROGRAMS: &str = "/bin/";
/// The container of the controller's pod that provisions instead of the controller.
const CSI_PROVISIONER: &str = "csi-provisioner";
/// With both, the controller reserves room for Mountpoint Pods.
pub(crate) const HEADROOM: [&str; 2] =
    ["MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME", "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME"];
/// The volume of the driver's pods with its keys.
const KEYS_VOLUME: &str = "credentials";

/// Each of these variables names an identity that a program uses if there are no keys.
const IDENTITY: [&str; 3] =
    ["AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT"];

/// Which of the driver's two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Controller,
    Node,
}

/// Whether the controller creates buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provisioning {
    #[default]
    Off,
    ByItself,
    ForCsiProvisioner,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    pub namespace: String,
    pub mountpoint_namespace: String,
    pub endpoint: String,
    pub region: String,
    pub provisioning: Provisioning,
    /// For Mountpoint Pods of workloads that ask for it.
    pub reserves_room: bool,
    /// Mounts move to Mountpoint Pods of the controller's version.
    pub moves_on_upgrade: bool,
    /// `ConfigMap` with the authorities of the endpoint's certificate.
    pub authorities: Option<String>,
    /// The Secret with the driver's keys, for each program; both may have the same.
    pub keys: BTreeMap<Role, (SecretName, Renamed)>,
    /// The programs that can do without such keys. Each has a service account of its own.
    pub identities: BTreeSet<Role>,
    /// (service account, role).
    pub accounts: Vec<(String, Role)>,
}

impl Role {
    pub fn program(self) -> &'static str {
        match self {
            Self::Controller => CONTROLLER,
            Self::Node => NODE_SERVICE,
        }
    }

    /// Whether a pod runs this program of ours. The names and the label `app` are also those of Amazon's driver, which
    /// may be installed beside this one.
    pub fn is_run_by(self, spec: Option<&PodSpec>) -> bool {
        let command = spec.and_then(|spec| spec.containers.first()?.command.as_ref()?.first());
        command.and_then(|path| path.strip_prefix(PROGRAMS)) == Some(self.program())
    }
}

impl Installation {
    /// Nothing, if there is none or it may not be read.
    pub fn of(deployments: &[Deployment], daemon_sets: &[DaemonSet]) -> Option<Self> {
        let controller = deployments.first().and_then(|it| it.spec.as_ref()?.template.spec.as_ref());
        let node = daemon_sets.first().and_then(|it| it.spec.as_ref()?.template.spec.as_ref());
        let namespace = deployments.first().and_then(ResourceExt::namespace);
        let namespace = namespace.or_else(|| daemon_sets.first().and_then(ResourceExt::namespace))?;
        let programs = [(controller, Role::Controller), (node, Role::Node)];
        let programs = programs.into_iter().filter_map(|(spec, role)| Some((spec?, role)));
        let variable = |spec: Option<&PodSpec>, name: &str| spec.and_then(|spec| variable(spec, name));
        let accounts =
            programs.clone().filter_map(|(spec, role)| Some((spec.service_account_name.clone()?, role)));
        let has_csi_provisioner = controller
            .is_some_and(|spec| spec.containers.iter().any(|container| container.name == CSI_PROVISIONER));
        let provisioning = match variable(controller, "PROVISIONING") {
            _ if has_csi_provisioner => Provisioning::ForCsiProvisioner,
            Some(value) if value == "on" => Provisioning::ByItself,
            _ => Provisioning::Off,
        };
        Some(Self {
            mountpoint_namespace: variable(controller, "MOUNTPOINT_NAMESPACE")
                .or_else(|| variable(node, "MOUNTPOINT_NAMESPACE"))
                .unwrap_or_else(|| MOUNTPOINT_NAMESPACE.to_owned()),
            endpoint: variable(node, "AWS_ENDPOINT_URL").unwrap_or_default(),
            region: variable(node, "AWS_REGION").unwrap_or_default(),
            provisioning,
            // The program's own default.
            moves_on_upgrade: variable(controller, "MOVE_ON_UPGRADE").is_none_or(|value| value == "true"),
            reserves_room: HEADROOM.iter().all(|name| variable(controller, name).is_some()),
            authorities: variable(controller, "TLS_CA_CERT_CONFIGMAP"),
            keys: programs.clone().filter_map(|(spec, role)| Some((role, keys(&namespace, spec)?))).collect(),
            identities: programs.filter(|(spec, _)| has_identity(spec)).map(|(_, role)| role).collect(),
            accounts: accounts.collect(),
            namespace,
        })
    }
}

fn variable(spec: &PodSpec, name: &str) -> Option<String> {
    let variables = spec.containers.first()?.env.as_ref()?;
    let value = variables.iter().find(|variable| variable.name == name)?.value.clone();
    value.filter(|value| !value.is_empty())
}

fn has_identity(spec: &PodSpec) -> bool {
    IDENTITY.iter().any(|name| variable(spec, name).is_some())
}

fn keys(namespace: &str, spec: &PodSpec) -> Option<(SecretName, Renamed)> {
    let volume = spec.volumes.as_ref()?.iter().find(|volume| volume.name == KEYS_VOLUME)?;
    let source = volume.secret.as_ref()?;
    let name = SecretName { namespace: namespace.to_owned(), name: source.secret_name.clone()? };
    let items = source.items.iter().flatten();
    Some((name, items.map(|item| (item.path.clone(), item.key.clone())).collect()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn template(variables: &Value) -> Value {
        json!({"spec": {"serviceAccountName": "sa", "containers": [{"name": "main", "env": variables}],
            "volumes": [{"name": "credentials", "secret": {"secretName": "s3-secret",
                "items": [{"key": "id", "path": "access_key_id"}]}}]}})
    }

    pub(crate) fn deployment() -> Deployment {
        let variables = json!([{"name": "MOUNTPOINT_NAMESPACE", "value": "mounts"}, {"name": "PROVISIONING", "value": "on"}]);
        serde_json::from_value(json!({
            "metadata": {"name": CONTROLLER, "namespace": "kube-system"},
            "spec": {"replicas": 1, "selector": {}, "template": template(&variables)},
            "status": {"replicas": 1, "readyReplicas": 1},
        }))
        .unwrap()
    }

    pub(crate) fn daemon_set(desired: i32, ready: i32) -> DaemonSet {
        let variables = json!([{"name": "AWS_ENDPOINT_URL", "value": "http://s3"}]);
        serde_json::from_value(json!({
            "metadata": {"name": NODE_SERVICE, "namespace": "kube-system"},
            "spec": {"selector": {}, "template": template(&variables)},
            "status": {"currentNumberScheduled": desired, "desiredNumberScheduled": desired, "numberMisscheduled": 0,
                "numberReady": ready},
        }))
        .unwrap()
    }

    #[test]
    fn an_installation_is_read_from_its_workloads() {
        assert_eq!(Installation::of(&[], &[]), None);
        let found = Installation::of(&[deployment()], &[daemon_set(1, 1)]).unwrap();
        assert_eq!(
            (found.namespace.as_str(), found.mountpoint_namespace.as_str()),
            ("kube-system", "mounts")
        );
        assert_eq!((found.endpoint.as_str(), found.provisioning), ("http://s3", Provisioning::ByItself));
        let (secret, renamed) = &found.keys[&Role::Node];
        assert_eq!(secret.to_string(), "kube-system/s3-secret");
        assert_eq!(renamed.get("access_key_id").map(String::as_str), Some("id"));
        assert_eq!(found.accounts, [("sa".to_owned(), Role::Controller), ("sa".to_owned(), Role::Node)]);
        assert!(!found.reserves_room && found.moves_on_upgrade);
    }

    #[test]
    fn a_driver_with_the_same_names_is_not_ours() {
        let spec = |command: Value| -> PodSpec {
            serde_json::from_value(json!({"containers": [{"name": "s3-plugin", "command": command}]}))
                .unwrap()
        };
        for (command, is_ours) in [
            (json!(["/bin/s3-csi-node"]), true),
            (json!(["/bin/s3-csi-controller"]), false),
            // Amazon's.
            (json!(["/bin/aws-s3-csi-driver"]), false),
            (json!(null), false),
        ] {
            assert_eq!(Role::Node.is_run_by(Some(&spec(command.clone()))), is_ours, "{command}");
        }
        assert!(!Role::Controller.is_run_by(None));
    }

    #[test]
    fn what_the_controller_does_is_read_from_its_pod() {
        let mut deployment = deployment();
        let spec = deployment.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        let variables = json!([
            {"name": "PROVISIONING", "value": "off"},
            {"name": HEADROOM[0], "value": "preempting"}, {"name": HEADROOM[1], "value": "headroom"},
            {"name": "MOVE_ON_UPGRADE", "value": "false"},
        ]);
        spec.containers[0].env = serde_json::from_value(variables).unwrap();
        let found = Installation::of(std::slice::from_ref(&deployment), &[]).unwrap();
        assert!(found.provisioning == Provisioning::Off && found.reserves_room && !found.moves_on_upgrade);
        let spec = deployment.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        spec.containers.push(serde_json::from_value(json!({"name": CSI_PROVISIONER})).unwrap());
        let found = Installation::of(&[deployment], &[]).unwrap();
        assert_eq!(found.provisioning, Provisioning::ForCsiProvisioner);
    }
}
