//! With whose keys a request is made, and where that account's buckets are.

use std::collections::BTreeMap;

use contract::options::is_region;
use service::keys::{Keys, KeysError};

/// Key of a Secret, beside those of S3 itself.
const REGION: &str = "region";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub keys: Keys,
    /// If its Secret says so.
    pub region: Option<String>,
}

impl Credentials {
    /// `whose` names the Secret in errors.
    pub fn of_secret(secret: &BTreeMap<String, String>, whose: &str) -> Result<Self, KeysError> {
        let region =
            secret.get(REGION).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let credentials = Self { keys: Keys::of_secret(secret, whose)?, region };
        if credentials.region.as_deref().is_none_or(is_region) {
            Ok(credentials)
        } else {
            Err(KeysError::Impossible(whose.to_owned(), REGION))
        }
    }
}

impl From<Keys> for Credentials {
    fn from(keys: Keys) -> Self {
        Self { keys, region: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_may_say_where_its_buckets_are() {
        let of_secret = |region: &str| {
            let pairs = [("access_key_id", "A"), ("secret_access_key", "B"), (REGION, region)];
            let secret = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            Credentials::of_secret(&secret, "Secret ns/keys")
        };
        assert_eq!(of_secret(" ").unwrap().region, None);
        assert_eq!(of_secret("eu-west-1\n").unwrap().region.as_deref(), Some("eu-west-1"));
        assert_eq!(of_secret("a b"), Err(KeysError::Impossible("Secret ns/keys".to_owned(), REGION)));
    }
}
