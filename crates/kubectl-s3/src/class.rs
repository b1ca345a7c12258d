//! A `StorageClass` of the driver, read by the controller's own rules.

use contract::names::DRIVER;
use controller::provision::class::parameters::{ClassParameters, ENDPOINT, SECRETS};
use controller::provision::class::template::Field;
use controller::provision::s3::endpoint::Endpoint;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::installation::Installation;
use crate::secret::SecretName;

/// Why the controller rejects it.
pub fn invalid(class: &StorageClass, installation: Option<&Installation>) -> Option<String> {
    let (endpoint, region) = match installation {
        Some(installation) => (installation.endpoint.as_str(), installation.region.as_str()),
        // Of an installation that is not readable, whatever the class names may be right.
        None => (class.parameters.as_ref().and_then(|all| all.get(ENDPOINT)).map_or("", String::as_str), ""),
    };
    let parsed = Endpoint::parse(endpoint, region).map_err(|error| error.to_string());
    let parsed = parsed
        .and_then(|endpoint| ClassParameters::of_class(class, &endpoint).map_err(|error| error.to_string()));
    parsed.err()
}

/// The Secrets that it names outright. Those of templates depend on the claim.
pub fn secrets(class: &StorageClass) -> Vec<SecretName> {
    let secret = |(name, namespace)| {
        let (name, namespace) = (fixed(class, name)?, fixed(class, namespace)?);
        Some(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
    };
    SECRETS.into_iter().filter_map(secret).collect()
}

/// Whether the controller makes the buckets of its claims with the driver's own keys.
pub fn uses_driver_keys(class: &StorageClass) -> bool {
    let named = |field: Field| class.parameters.as_ref().is_some_and(|all| all.contains_key(field.key()));
    class.provisioner == DRIVER && !named(Field::ProvisionerSecretName) && !named(Field::DefaultSecretName)
}

/// Where the controller reads the Secret of a claim, if that does not depend on the claim.
pub fn provisioner_secret_namespace(class: &StorageClass) -> Option<&str> {
    fixed(class, Field::ProvisionerSecretNamespace)
}

fn fixed(class: &StorageClass, field: Field) -> Option<&str> {
    class.parameters.as_ref()?.get(field.key()).map(String::as_str).filter(|value| !value.contains("${"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_secrets_of_fixed_names_are_known() {
        let parameters = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "admin", "csi.storage.k8s.io/provisioner-secret-namespace": "ns",
            "csi.storage.k8s.io/node-publish-secret-name": "${pvc.name}", "csi.storage.k8s.io/node-publish-secret-namespace": "ns",
            "csi.storage.k8s.io/secret-name": "any", "csi.storage.k8s.io/secret-namespace": "ns",
        });
        let class =
            json!({"metadata": {"name": "c"}, "provisioner": "s3.csi.scality.com", "parameters": parameters});
        let names: Vec<String> =
            secrets(&serde_json::from_value(class).unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ns/admin", "ns/any"]);
    }
}
