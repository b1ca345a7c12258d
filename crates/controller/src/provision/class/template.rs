//! Variables such as `${pvc.name}` in the parameters of a `StorageClass`.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::StorageClass;
use strum::IntoStaticStr;
use thiserror::Error;

/// The claim that a template is resolved for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub volume_name: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub annotations: &'a BTreeMap<String, String>,
}

/// Decides which variables are allowed: for Secrets, those of external-provisioner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Field {
    #[strum(serialize = "csi.storage.k8s.io/provisioner-secret-name")]
    ProvisionerSecretName,
    #[strum(serialize = "csi.storage.k8s.io/provisioner-secret-namespace")]
    ProvisionerSecretNamespace,
    #[strum(serialize = "csi.storage.k8s.io/node-publish-secret-name")]
    NodePublishSecretName,
    #[strum(serialize = "csi.storage.k8s.io/node-publish-secret-namespace")]
    NodePublishSecretNamespace,
    /// For all operations that have no Secret of their own.
    #[strum(serialize = "csi.storage.k8s.io/secret-name")]
    DefaultSecretName,
    #[strum(serialize = "csi.storage.k8s.io/secret-namespace")]
    DefaultSecretNamespace,
    #[strum(serialize = "prefix")]
    Prefix,
}

impl Field {
    /// The parameter's key.
    pub fn key(self) -> &'static str {
        self.into()
    }

    fn is_namespace(self) -> bool {
        matches!(
            self,
            Self::ProvisionerSecretNamespace
                | Self::NodePublishSecretNamespace
                | Self::DefaultSecretNamespace
        )
    }

    fn allows(self, part: &Part) -> bool {
        match part {
            Part::Text(_) | Part::VolumeName | Part::ClaimNamespace => true,
            // The claim's author chooses its name, and must not choose another tenant's namespace with it.
            Part::ClaimName => !self.is_namespace(),
            Part::ClaimAnnotation(_) => self == Self::NodePublishSecretName,
        }
    }

    fn variables(self) -> &'static str {
        match self {
            Self::NodePublishSecretName => {
                "${pv.name}, ${pvc.namespace}, ${pvc.name}, ${pvc.annotations['KEY']}"
            }
            _ if self.is_namespace() => "${pv.name}, ${pvc.namespace}",
            _ => "${pv.name}, ${pvc.namespace}, ${pvc.name}",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    #[error("invalid parameter `{0}`: `$` does not start a variable; write variables as ${{pvc.name}}")]
    Dollar(&'static str),
    #[error("invalid parameter `{0}`: variable ${{{1}}} is not allowed; allowed variables: {2}")]
    Variable(&'static str, String, &'static str),
    #[error("parameter `{0}` needs annotation `{1}` on the claim: add the annotation")]
    Annotation(&'static str, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    VolumeName,
    ClaimNamespace,
    ClaimName,
    ClaimAnnotation(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    field: Field,
    parts: Vec<Part>,
}

impl Template {
    pub fn parse(field: Field, text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (before, from) = rest.split_at(at);
            let inside = from.strip_prefix("${").and_then(|inside| inside.split_once('}'));
            let (variable, after) = inside.ok_or(TemplateError::Dollar(field.key()))?;
            let part = parse_variable(variable).filter(|part| field.allows(part));
            let not_allowed = || TemplateError::Variable(field.key(), variable.to_owned(), field.variables());
            parts.extend((!before.is_empty()).then(|| Part::Text(before.to_owned())));
            parts.push(part.ok_or_else(not_allowed)?);
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        Ok(Self { field, parts })
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub fn resolve(&self, subject: &Subject<'_>) -> Result<String, TemplateError> {
        let mut text = String::new();
        for part in &self.parts {
            text += match part {
                Part::Text(text) => text,
                Part::VolumeName => subject.volume_name,
                Part::ClaimNamespace => subject.namespace,
                Part::ClaimName => subject.name,
                Part::ClaimAnnotation(key) => {
                    let missing = || TemplateError::Annotation(self.field.key(), key.clone());
                    subject.annotations.get(key).ok_or_else(missing)?
                }
            };
        }
        Ok(text)
    }
}

/// Whether a parameter of the class may depend on annotations of the claim.
pub fn reads_annotations(class: &StorageClass) -> bool {
    class.parameters.iter().flat_map(BTreeMap::values).any(|value| value.contains("${pvc.annotations["))
}

fn parse_variable(variable: &str) -> Option<Part> {
    match variable {
        "pv.name" => Some(Part::VolumeName),
        "pvc.namespace" => Some(Part::ClaimNamespace),
        "pvc.name" => Some(Part::ClaimName),
        _ => {
            let key = variable.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            (!key.is_empty()).then(|| Part::ClaimAnnotation(key.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(field: Field, text: &str) -> Result<String, String> {
        let annotations = BTreeMap::from([("team/key".to_owned(), "blue".to_owned())]);
        let subject =
            Subject { volume_name: "pvc-1", namespace: "ns", name: "data", annotations: &annotations };
        Template::parse(field, text)
            .and_then(|template| template.resolve(&subject))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_variable_has_its_value() {
        let field = Field::NodePublishSecretName;
        let text = "a-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['team/key']}-z";
        assert_eq!(resolve(field, text).unwrap(), "a-pvc-1-ns-data-blue-z");
        assert_eq!(resolve(field, "").unwrap(), "");
    }

    #[test]
    fn each_field_has_its_own_variables() {
        for (field, variable) in [
            (Field::ProvisionerSecretNamespace, "${pvc.name}"),
            (Field::NodePublishSecretNamespace, "${pvc.name}"),
            (Field::NodePublishSecretNamespace, "${pvc.annotations['team/key']}"),
            (Field::DefaultSecretNamespace, "${pvc.name}"),
            (Field::ProvisionerSecretName, "${pvc.annotations['team/key']}"),
            (Field::DefaultSecretName, "${pvc.annotations['team/key']}"),
            (Field::Prefix, "${pvc.annotations['team/key']}"),
            (Field::Prefix, "${pvc.uid}"),
            (Field::Prefix, "${}"),
        ] {
            let error = resolve(field, variable).unwrap_err();
            assert!(
                error.contains(field.key()) && error.contains("allowed variables: ${pv.name}"),
                "{error}"
            );
        }
    }

    #[test]
    fn malformed_variables_are_refused() {
        for text in ["$pvc.name", "${pvc.name", "a$", "$$"] {
            let error = resolve(Field::Prefix, text).unwrap_err();
            assert!(error.contains("does not start a variable"), "{text}: {error}");
        }
        let error = resolve(Field::NodePublishSecretName, "${pvc.annotations['other']}").unwrap_err();
        assert!(error.contains("annotation `other`"), "{error}");
    }
}
