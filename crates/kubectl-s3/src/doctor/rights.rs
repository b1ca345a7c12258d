//! Whether the driver's service accounts may do what the chart's own rules say.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;

use super::finding::{Check, Finding, Level};
use crate::installation::{Installation, Role};
use crate::observe::answer;

/// The files that the chart makes its roles of.
const CONTROLLER_CLUSTER: &str = include_str!("../../../../charts/s3-csi/rbac/controller-cluster.yaml");
const CONTROLLER_MOUNTS: &str =
    include_str!("../../../../charts/s3-csi/rbac/controller-mountpoint-namespace.yaml");
const CONTROLLER_RELEASE: &str =
    include_str!("../../../../charts/s3-csi/rbac/controller-release-namespace.yaml");
const CONTROLLER_CLAIMS: &str = include_str!("../../../../charts/s3-csi/rbac/controller-provisioning.yaml");
const NODE_CLUSTER: &str = include_str!("../../../../charts/s3-csi/rbac/node-cluster.yaml");
const NODE_MOUNTS: &str = include_str!("../../../../charts/s3-csi/rbac/node-mountpoint-namespace.yaml");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

/// One thing that an account has to be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// As the API server knows service accounts.
    pub user: String,
    pub namespace: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: Option<String>,
    pub name: Option<String>,
    pub verb: String,
}

/// Those that are denied, or why it could not be found out.
pub type Reviewed = Result<Vec<Right>, String>;

impl Right {
    fn describe(&self) -> String {
        let Self { namespace, group, resource, subresource, name, verb, .. } = self;
        let part = |before: &str, text: &Option<String>| {
            text.as_ref().map(|text| format!("{before}{text}")).unwrap_or_default()
        };
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let (under, called, place) =
            (part("/", subresource), part(" ", name), part(" in namespace ", namespace));
        format!("{verb} {resource}{group}{under}{called}{place}")
    }
}

/// Everything that the programs of this installation need.
pub fn needed(installation: &Installation) -> Vec<Right> {
    let (mounts, release) =
        (Some(installation.mountpoint_namespace.as_str()), Some(installation.namespace.as_str()));
    let mut all = Vec::new();
    for (account, role) in &installation.accounts {
        let user = format!("system:serviceaccount:{}:{account}", installation.namespace);
        let files: &[(&str, Option<&str>)] = match role {
            Role::Controller => &[
                (CONTROLLER_CLUSTER, None),
                (CONTROLLER_MOUNTS, mounts),
                (CONTROLLER_RELEASE, release),
                (if installation.provisions { CONTROLLER_CLAIMS } else { "[]" }, None),
            ],
            Role::Node => &[(NODE_CLUSTER, None), (NODE_MOUNTS, mounts)],
        };
        for (file, namespace) in files {
            // Parsed by a test.
            let rules: Vec<Rule> = serde_saphyr::from_str(file).unwrap_or_default();
            all.extend(rules.iter().flat_map(|rule| rule.rights(&user, *namespace)));
        }
    }
    all
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

/// Asks the API server about each.
pub async fn review(client: &Client, rights: &[Right]) -> Reviewed {
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let asked = rights.iter().map(|right| {
        let reviews = reviews.clone();
        async move {
            let attributes = ResourceAttributes {
                group: Some(right.group.clone()),
                resource: Some(right.resource.clone()),
                subresource: right.subresource.clone(),
                name: right.name.clone(),
                namespace: right.namespace.clone(),
                verb: Some(right.verb.clone()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                user: Some(right.user.clone()),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let reviewed = answer(reviews.create(&PostParams::default(), &review)).await?;
            Ok(reviewed.status.is_some_and(|status| status.allowed))
        }
    });
    let answers: Result<Vec<bool>, String> = futures::future::try_join_all(asked).await;
    let denied = rights.iter().zip(answers?).filter(|(_, allowed)| !allowed);
    Ok(denied.map(|(right, _)| right.clone()).collect())
}

pub(super) fn denied(reviewed: Option<&Reviewed>) -> Vec<Finding> {
    match reviewed {
        None => vec![Finding::new(Check::Permissions, Level::Skipped, "", "the installation was not found")],
        Some(Err(error)) => {
            vec![Finding::new(
                Check::Permissions,
                Level::Skipped,
                "",
                format!("cannot ask for rights of others: {error}"),
            )]
        }
        Some(Ok(denied)) => denied
            .iter()
            .map(|right| {
                let message = format!("may not {}", right.describe());
                Finding::new(Check::Permissions, Level::Error, right.user.clone(), message)
                    .remedy("install the chart again, or give the account the rules in charts/s3-csi/rbac")
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_rules_are_read() {
        for file in [
            CONTROLLER_CLUSTER,
            CONTROLLER_MOUNTS,
            CONTROLLER_RELEASE,
            CONTROLLER_CLAIMS,
            NODE_CLUSTER,
            NODE_MOUNTS,
        ] {
            assert!(!serde_saphyr::from_str::<Vec<Rule>>(file).unwrap().is_empty(), "{file}");
        }
    }

    #[test]
    fn each_program_needs_its_own() {
        let installation = Installation {
            namespace: "kube-system".into(),
            mountpoint_namespace: "mounts".into(),
            accounts: vec![("c".into(), Role::Controller), ("n".into(), Role::Node)],
            ..Installation::default()
        };
        let rights: Vec<String> = needed(&installation)
            .iter()
            .map(|right| format!("{}: {}", right.user, right.describe()))
            .collect();
        let of = |account: &str| format!("system:serviceaccount:kube-system:{account}: ");
        for expected in [
            of("c") + "patch mountpoints3podattachments.s3.csi.scality.com/status",
            of("c") + "create pods in namespace mounts",
            of("n") + "list pods in namespace mounts",
        ] {
            assert!(rights.contains(&expected), "{expected} is not in {rights:#?}");
        }
        assert!(!rights.iter().any(|right| right.contains("storageclasses")), "it does not provision");
        let provisions = Installation { provisions: true, ..installation };
        assert!(needed(&provisions).iter().any(|right| right.resource == "storageclasses"));
    }

    #[test]
    fn what_is_denied_is_named() {
        let right =
            needed(&Installation { accounts: vec![("n".into(), Role::Node)], ..Installation::default() })[0]
                .clone();
        let found = denied(Some(&Ok(vec![right])));
        assert_eq!(found[0].level, Level::Error);
        assert!(found[0].message.starts_with("may not list mountpoints3podattachments"), "{found:?}");
        assert_eq!(denied(Some(&Err("forbidden".into())))[0].level, Level::Skipped);
        assert_eq!(denied(Some(&Ok(vec![]))), []);
    }
}
