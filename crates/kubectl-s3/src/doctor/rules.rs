//! What the driver's service accounts need, by the chart's own rules.

use contract::names::DRIVER;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::ResourceExt as _;
use serde::Deserialize;

use super::rights::Right;
use crate::class;
use crate::installation::{Installation, Provisioning, Role};
use crate::snapshot::Snapshot;

/// A file from which the chart builds its roles.
macro_rules! rules {
    ($file:literal) => {
        include_str!(concat!("../../../../charts/s3-csi/rbac/", $file, ".yaml"))
    };
}

const CONTROLLER_CLUSTER: &str = rules!("controller-cluster");
const CONTROLLER_MOUNTS: &str = rules!("controller-mountpoint-namespace");
const CONTROLLER_RELEASE: &str = rules!("controller-release-namespace");
const CONTROLLER_POD_IDENTITY: &str = rules!("controller-pod-identity");
const CONTROLLER_HEADROOM: &str = rules!("controller-headroom");
const CONTROLLER_CLAIMS: &str = rules!("controller-provisioning");
const CONTROLLER_SECRETS: &str = rules!("controller-provisioning-secrets");
const CSI_PROVISIONER: &str = rules!("controller-csi-provisioner");
const CSI_PROVISIONER_RELEASE: &str = rules!("controller-csi-provisioner-release-namespace");
const NODE_CLUSTER: &str = rules!("node-cluster");
const NODE_MOUNTS: &str = rules!("node-mountpoint-namespace");

/// Rules, and the namespace they are for; all namespaces if none.
type Scoped<'a> = (&'static str, Option<&'a str>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

/// Everything that the programs of this installation need, with the classes that there are.
pub fn needed(installation: &Installation, snapshot: &Snapshot) -> Vec<Right> {
    let mut all = Vec::new();
    for (account, role) in &installation.accounts {
        let user = format!("system:serviceaccount:{}:{account}", installation.namespace);
        let files = match role {
            Role::Controller => of_controller(installation, snapshot),
            Role::Node => {
                vec![(NODE_CLUSTER, None), (NODE_MOUNTS, Some(installation.mountpoint_namespace.as_str()))]
            }
        };
        for (file, namespace) in files {
            // Parsed by a test.
            let rules: Vec<Rule> = serde_saphyr::from_str(file).unwrap_or_default();
            for right in rules.iter().flat_map(|rule| rule.rights(&user, namespace)) {
                // Some are in several files, for what they are each for.
                if !all.contains(&right) {
                    all.push(right);
                }
            }
        }
    }
    all
}

fn of_controller<'a>(installation: &'a Installation, snapshot: &'a Snapshot) -> Vec<Scoped<'a>> {
    let (mounts, release) =
        (Some(installation.mountpoint_namespace.as_str()), Some(installation.namespace.as_str()));
    let mut files =
        vec![(CONTROLLER_CLUSTER, None), (CONTROLLER_MOUNTS, mounts), (CONTROLLER_RELEASE, release)];
    // The chart's value has no other trace: the controller reads service accounts for volumes that ask for it.
    let requests_tokens = |driver: &CSIDriver| {
        driver.name_any() == DRIVER && driver.spec.token_requests.as_ref().is_some_and(|all| !all.is_empty())
    };
    if snapshot.csi_drivers.iter().any(requests_tokens) {
        files.push((CONTROLLER_POD_IDENTITY, None));
    }
    if installation.reserves_room {
        files.push((CONTROLLER_HEADROOM, None));
    }
    if installation.provisioning != Provisioning::Off {
        files.push((CONTROLLER_CLAIMS, None));
        // An installation may limit it to some namespaces. Those that classes name are the ones that it needs.
        let classes = snapshot.classes.iter().filter(|class| class.provisioner == DRIVER);
        let namespaces = classes.filter_map(class::provisioner_secret_namespace);
        files.extend(namespaces.map(|namespace| (CONTROLLER_SECRETS, Some(namespace))));
    }
    if installation.provisioning == Provisioning::ForCsiProvisioner {
        files.extend([(CSI_PROVISIONER, None), (CSI_PROVISIONER_RELEASE, release)]);
    }
    files
}

impl Rule {
    fn rights(&self, user: &str, namespace: Option<&str>) -> Vec<Right> {
        let names: Vec<Option<&String>> = if self.resource_names.is_empty() {
            vec![None]
        } else {
            self.resource_names.iter().map(Some).collect()
        };
        let mut rights = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                let (kind, under) = resource
                    .split_once('/')
                    .map_or((resource.as_str(), None), |(kind, under)| (kind, Some(under)));
                for verb in &self.verbs {
                    rights.extend(names.iter().map(|name| Right {
                        user: user.to_owned(),
                        namespace: namespace.map(str::to_owned),
                        group: group.clone(),
                        resource: kind.to_owned(),
                        subresource: under.map(str::to_owned),
                        name: name.cloned(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
        rights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ALL: [&str; 11] = [
        CONTROLLER_CLUSTER,
        CONTROLLER_MOUNTS,
        CONTROLLER_RELEASE,
        CONTROLLER_POD_IDENTITY,
        CONTROLLER_HEADROOM,
        CONTROLLER_CLAIMS,
        CONTROLLER_SECRETS,
        CSI_PROVISIONER,
        CSI_PROVISIONER_RELEASE,
        NODE_CLUSTER,
        NODE_MOUNTS,
    ];

    #[test]
    fn all_of_the_charts_rules_are_read() {
        let folder = "../../charts/s3-csi/rbac";
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(ALL.contains(&text.as_str()), "{} is not asked about", path.display());
            assert!(!serde_saphyr::from_str::<Vec<Rule>>(&text).unwrap().is_empty(), "{}", path.display());
        }
    }

    fn described(installation: &Installation, snapshot: &Snapshot) -> Vec<String> {
        let rights = needed(installation, snapshot);
        let mut all: Vec<String> =
            rights.iter().map(|right| format!("{}: {}", right.user, right.describe())).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "none is asked about twice");
        all
    }

    #[test]
    fn each_program_needs_its_own() {
        let plain = Installation {
            namespace: "kube-system".into(),
            mountpoint_namespace: "mounts".into(),
            accounts: vec![("c".into(), Role::Controller), ("n".into(), Role::Node)],
            ..Installation::default()
        };
        let of = |account: &str| format!("system:serviceaccount:kube-system:{account}: ");
        let nothing = Snapshot::default();
        let usual = described(&plain, &nothing);
        for expected in [
            of("c") + "patch mountpoints3podattachments.s3.csi.scality.com/status",
            of("c") + "create pods in namespace mounts",
            of("n") + "list pods in namespace mounts",
        ] {
            assert!(usual.contains(&expected), "{expected} is not in {usual:#?}");
        }
        let with = |change: fn(&mut Installation)| {
            let mut installation = plain.clone();
            change(&mut installation);
            installation
        };
        let driver = json!({"metadata": {"name": DRIVER}, "spec": {"tokenRequests": [{"audience": "sts"}]}});
        let identity =
            Snapshot { csi_drivers: vec![serde_json::from_value(driver).unwrap()], ..Snapshot::default() };
        let class = |namespace: &str, provisioner: &str| {
            let parameters = json!({"csi.storage.k8s.io/provisioner-secret-namespace": namespace});
            let class =
                json!({"metadata": {"name": "c"}, "provisioner": provisioner, "parameters": parameters});
            serde_json::from_value(class).unwrap()
        };
        let classes = Snapshot {
            classes: vec![
                class("tenants", DRIVER),
                class("tenants", DRIVER),
                class("${pvc.namespace}", DRIVER),
                class("others", "nfs.example.com"),
            ],
            ..Snapshot::default()
        };
        let provisions = with(|it| it.provisioning = Provisioning::ByItself);
        let secrets = of("c") + "get secrets in namespace tenants";
        for (installation, snapshot, expected) in [
            (&plain, &identity, of("c") + "get serviceaccounts"),
            (&with(|it| it.reserves_room = true), &nothing, of("c") + "patch pods"),
            (&provisions, &nothing, of("c") + "get storageclasses.storage.k8s.io"),
            (&provisions, &classes, secrets.clone()),
            (
                &with(|it| it.provisioning = Provisioning::ForCsiProvisioner),
                &nothing,
                of("c") + "update leases.coordination.k8s.io s3-csi-scality-com in namespace kube-system",
            ),
        ] {
            assert!(!usual.contains(&expected), "{expected} is not needed");
            let rights = described(installation, snapshot);
            assert!(rights.contains(&expected), "{expected} is not in {rights:#?}");
        }
        let of_secrets = |installation| {
            let rights = described(installation, &classes);
            rights.into_iter().filter(|right| right.contains("secrets")).collect::<Vec<_>>()
        };
        assert_eq!(of_secrets(&plain), [""; 0], "it does not provision");
        assert_eq!(of_secrets(&provisions), [secrets]);
    }
}
