//! The driver's own keys. Each of its programs may have a Secret of its own, or an identity instead.

use std::collections::BTreeMap;

use super::finding::{Check, Finding, Level};
use crate::class;
use crate::installation::{Installation, Provisioning, Role};
use crate::secret::{SecretName, SecretState};
use crate::snapshot::Snapshot;

/// How many classes or volumes cannot be used while this program has neither keys nor an identity.
pub(super) fn needed_by(snapshot: &Snapshot, installation: &Installation, role: Role) -> usize {
    match role {
        Role::Controller if installation.provisioning == Provisioning::Off => 0,
        Role::Controller => snapshot.classes.iter().filter(|class| class::uses_driver_keys(class)).count(),
        Role::Node => snapshot.volumes.iter().filter(|volume| volume.uses_driver_keys()).count(),
    }
}

pub(super) fn driver_keys(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(installation) = snapshot.installation() else {
        return Vec::new();
    };
    let mut programs: BTreeMap<&SecretName, Vec<Role>> = BTreeMap::new();
    for (role, (name, _)) in &installation.keys {
        programs.entry(name).or_default().push(*role);
    }
    let found = programs.into_iter().filter_map(|(name, programs)| {
        let finding =
            |level, message: String| Finding::new(Check::DriverKeys, level, name.to_string(), message);
        match snapshot.secrets.get(name)? {
            SecretState::Usable => None,
            SecretState::Missing => {
                let without = programs.into_iter().filter(|role| !installation.identities.contains(role));
                missing(snapshot, &installation, name, &without.collect::<Vec<_>>())
            }
            SecretState::Invalid(error) => Some(
                finding(Level::Error, error.clone())
                    .remedy("correct the Secret; the driver reads it again by itself"),
            ),
            SecretState::Unreadable(error) => Some(finding(Level::Unknown, format!("not readable: {error}"))),
        }
    });
    found.collect()
}

/// `programs` have no identity.
fn missing(
    snapshot: &Snapshot,
    installation: &Installation,
    name: &SecretName,
    programs: &[Role],
) -> Option<Finding> {
    let finding = |level, message: String| Finding::new(Check::DriverKeys, level, name.to_string(), message);
    let users = |role: Role| match (role, needed_by(snapshot, installation, role)) {
        (_, 0) => None,
        (Role::Controller, count) => Some(format!("claims of {count} classes")),
        (Role::Node, count) => Some(format!("{count} volumes")),
    };
    let needed: Vec<(Role, String)> =
        programs.iter().filter_map(|role| Some((*role, users(*role)?))).collect();
    if needed.is_empty() {
        // An installation may do without.
        let kinds = programs.iter().map(|role| match role {
            Role::Controller => "classes",
            Role::Node => "volumes",
        });
        let kinds = kinds.collect::<Vec<_>>().join(" and ");
        let message = format!("does not exist: {kinds} without a Secret of their own cannot be used");
        return (!programs.is_empty()).then(|| finding(Level::Info, message));
    }
    let (programs, users): (Vec<&str>, Vec<String>) =
        needed.into_iter().map(|(role, users)| (role.program(), users)).unzip();
    let remedy = format!(
        "create it with `access_key_id` and `secret_access_key`, or give {} an identity: a role in the annotations of its \
         service account, `podIdentity.eks.driver` or `instanceProfile.enabled` of the chart",
        programs.join(" and ")
    );
    let message = format!("does not exist, and {} need it", users.join(" and "));
    Some(finding(Level::Error, message).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::scene::scene;
    use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
    use serde_json::{Value, json};

    fn said(snapshot: &Snapshot) -> Vec<(Level, String)> {
        driver_keys(snapshot).into_iter().map(|finding| (finding.level, finding.message)).collect()
    }

    fn one(level: Level, message: &str) -> Vec<(Level, String)> {
        vec![(level, message.to_owned())]
    }

    /// The scene, with the Secret of both programs in this state.
    fn with(state: SecretState) -> Snapshot {
        let mut snapshot = scene();
        *snapshot.secrets.values_mut().next().unwrap() = state;
        snapshot
    }

    fn spec(template: &mut PodTemplateSpec) -> &mut PodSpec {
        template.spec.as_mut().unwrap()
    }

    fn controller(snapshot: &mut Snapshot) -> &mut PodSpec {
        spec(&mut snapshot.deployments[0].spec.as_mut().unwrap().template)
    }

    fn node(snapshot: &mut Snapshot) -> &mut PodSpec {
        spec(&mut snapshot.daemon_sets[0].spec.as_mut().unwrap().template)
    }

    /// As the chart does for a service account that is annotated with a role.
    fn give_role(program: &mut PodSpec) {
        let variable = json!({"name": "AWS_ROLE_ARN", "value": "arn:aws:iam::1:role/driver"});
        program.containers[0].env.as_mut().unwrap().push(serde_json::from_value(variable).unwrap());
    }

    fn add_class(snapshot: &mut Snapshot, parameters: &Value) {
        let class =
            json!({"metadata": {"name": "c"}, "provisioner": "s3.csi.scality.com", "parameters": parameters});
        snapshot.classes.push(serde_json::from_value(class).unwrap());
    }

    #[test]
    fn the_drivers_keys_are_needed_by_volumes_without_their_own() {
        assert_eq!(said(&with(SecretState::Usable)), []);
        let mut snapshot = with(SecretState::Missing);
        assert_eq!(said(&snapshot), one(Level::Error, "does not exist, and 1 volumes need it"));
        snapshot.volumes.clear();
        let without = "does not exist: classes and volumes without a Secret of their own cannot be used";
        assert_eq!(said(&snapshot), one(Level::Info, without));
        let invalid = "`access_key_id` is empty";
        assert_eq!(said(&with(SecretState::Invalid(invalid.to_owned()))), one(Level::Error, invalid));
        let forbidden = with(SecretState::Unreadable("forbidden".to_owned()));
        assert_eq!(said(&forbidden), one(Level::Unknown, "not readable: forbidden"));
    }

    /// A role of the one is of no use to the other.
    #[test]
    fn each_program_needs_keys_or_an_identity_of_its_own() {
        let mut snapshot = with(SecretState::Missing);
        add_class(&mut snapshot, &json!({}));
        let both = "does not exist, and claims of 1 classes and 1 volumes need it";
        assert_eq!(said(&snapshot), one(Level::Error, both));
        let mut of_controller = snapshot.clone();
        give_role(controller(&mut of_controller));
        assert_eq!(said(&of_controller), one(Level::Error, "does not exist, and 1 volumes need it"));
        give_role(node(&mut snapshot));
        assert_eq!(said(&snapshot), one(Level::Error, "does not exist, and claims of 1 classes need it"));
        let remedy = &driver_keys(&snapshot)[0].remedy;
        assert!(remedy.contains("give s3-csi-controller an identity"), "{remedy}");
        give_role(controller(&mut snapshot));
        assert_eq!(said(&snapshot), []);
    }

    #[test]
    fn a_controller_needs_keys_for_classes_without_a_secret_of_their_own() {
        let mut snapshot = with(SecretState::Missing);
        give_role(node(&mut snapshot));
        let without =
            one(Level::Info, "does not exist: classes without a Secret of their own cannot be used");
        assert_eq!(said(&snapshot), without, "there is no class");
        for prefix in ["provisioner-secret", "secret"] {
            let [name, namespace] =
                ["name", "namespace"].map(|part| format!("csi.storage.k8s.io/{prefix}-{part}"));
            add_class(&mut snapshot, &json!({name: "${pvc.name}", namespace: "ns"}));
        }
        assert_eq!(said(&snapshot), without, "the classes name Secrets");
        add_class(&mut snapshot, &json!({}));
        assert_eq!(said(&snapshot)[0].0, Level::Error);
        // A Secret for the controller alone.
        let admin = SecretName { namespace: "kube-system".into(), name: "admin".into() };
        let volume = &mut controller(&mut snapshot).volumes.as_mut().unwrap()[0];
        volume.secret.as_mut().unwrap().secret_name = Some(admin.name.clone());
        snapshot.secrets.insert(admin.clone(), SecretState::Usable);
        assert_eq!(said(&snapshot), []);
        snapshot.secrets.insert(admin, SecretState::Missing);
        assert_eq!(driver_keys(&snapshot)[0].object, "kube-system/admin");
        controller(&mut snapshot).containers[0].env = None;
        assert_eq!(said(&snapshot)[0].0, Level::Info, "it does not provision");
    }
}
