//! Secrets with S3 keys. Whether they are usable is all that is kept of them: no value leaves this file, except for the
//! scrubber, which needs them to find them.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use serde::{Serialize, Serializer};
use service::keys;

/// The one key of such a Secret that is not secret.
const REGION: &str = "region";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

impl Serialize for SecretName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    Missing,
    /// Why it could not be read.
    Unreadable(String),
    /// Why the driver rejects it.
    Invalid(String),
    Usable,
}

/// Values of Secrets, to be found and removed from a bundle. Cannot be printed.
#[derive(Clone, Default)]
pub struct Values(pub(crate) Vec<String>);

/// The path at which the driver's pods have a key, and the key of the Secret.
pub type Renamed = BTreeMap<String, String>;

impl SecretState {
    /// `renamed` where the installation gives the keys of the Secret other names.
    pub fn of(name: &SecretName, secret: &Secret, renamed: &Renamed) -> Self {
        let text = decoded(secret);
        let data: BTreeMap<String, String> = if renamed.is_empty() {
            text
        } else {
            renamed.iter().filter_map(|(path, key)| Some((path.clone(), text.get(key)?.clone()))).collect()
        };
        match keys::of_secret(&data, &format!("Secret {name}")) {
            Ok(_) => Self::Usable,
            Err(error) => Self::Invalid(error.to_string()),
        }
    }
}

/// What a bundle must not contain.
pub fn values(secret: &Secret) -> Vec<String> {
    let secret = decoded(secret).into_iter().filter(|(key, _)| key != REGION);
    secret.map(|(_, value)| value.trim().to_owned()).collect()
}

fn decoded(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(data: &[(&str, &str)], renamed: &Renamed) -> SecretState {
        let data: BTreeMap<&str, k8s_openapi::ByteString> = data
            .iter()
            .map(|(key, value)| (*key, k8s_openapi::ByteString(value.as_bytes().to_vec())))
            .collect();
        let secret = serde_json::from_value(json!({"metadata": {"name": "keys"}, "data": data})).unwrap();
        SecretState::of(&SecretName { namespace: "ns".into(), name: "keys".into() }, &secret, renamed)
    }

    #[test]
    fn the_driver_decides_whether_keys_are_usable() {
        let none = Renamed::new();
        assert_eq!(state(&[("access_key_id", "A"), ("secret_access_key", "B")], &none), SecretState::Usable);
        let SecretState::Invalid(why) = state(&[("access_key_id", "A")], &none) else { panic!("usable") };
        assert!(why.contains("Secret ns/keys") && why.contains("secret_access_key"), "{why}");
    }

    #[test]
    fn an_installation_may_rename_keys() {
        let renamed: Renamed = [("access_key_id", "id"), ("secret_access_key", "key")]
            .map(|(path, key)| (path.to_owned(), key.to_owned()))
            .into();
        assert_eq!(state(&[("id", "A"), ("key", "B")], &renamed), SecretState::Usable);
        assert!(matches!(state(&[("access_key_id", "A"), ("key", "B")], &renamed), SecretState::Invalid(_)));
    }
}
