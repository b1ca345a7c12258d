//! Whose keys sign a request, and in which region.

use std::collections::BTreeMap;

use contract::keys::Keys;
use contract::s3::{RegionSources, is_region};
use service::keys::{self, KeysError};

/// Key of a Secret, beside the access keys.
const REGION: &str = "region";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub keys: Keys,
    /// Region of the Secret, if it has one.
    pub region: Option<String>,
}

impl Credentials {
    /// `secret_name` is for errors.
    pub fn from_secret(secret: &BTreeMap<String, String>, secret_name: &str) -> Result<Self, KeysError> {
        let region =
            secret.get(REGION).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let credentials = Self { keys: keys::of_secret(secret, secret_name)?, region };
        if credentials.region.as_deref().is_none_or(is_region) {
            Ok(credentials)
        } else {
            Err(KeysError::Impossible(secret_name.to_owned(), REGION))
        }
    }
}

impl From<Keys> for Credentials {
    fn from(keys: Keys) -> Self {
        Self { keys, region: None }
    }
}

/// The account that a request is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub(super) keys: Keys,
    region: Option<String>,
}

impl Account {
    /// `region` is the one that the class or the volume names.
    pub fn new(credentials: Credentials, region: Option<&str>) -> Self {
        let secret = credentials.region.as_deref();
        let region = RegionSources { volume: region, secret, driver: None }.explicit().map(str::to_owned);
        Self { keys: credentials.keys, region }
    }

    #[cfg(test)]
    pub(crate) fn access_key_id(&self) -> &str {
        &self.keys.access_key_id
    }

    /// `None` if it is the driver's.
    pub fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_secret(region: &str) -> Result<Credentials, KeysError> {
        let pairs = [("access_key_id", "A"), ("secret_access_key", "B"), (REGION, region)];
        let secret = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        Credentials::from_secret(&secret, "Secret ns/keys")
    }

    #[test]
    fn a_secret_may_name_a_region() {
        assert_eq!(from_secret(" ").unwrap().region, None);
        assert_eq!(from_secret("eu-west-1\n").unwrap().region.as_deref(), Some("eu-west-1"));
        assert_eq!(from_secret("a b"), Err(KeysError::Impossible("Secret ns/keys".to_owned(), REGION)));
    }

    #[test]
    fn the_class_has_precedence_over_the_secret() {
        let credentials = from_secret("eu-west-1").unwrap();
        assert_eq!(Account::new(credentials.clone(), Some("eu-west-2")).region(), Some("eu-west-2"));
        assert_eq!(Account::new(credentials, None).region(), Some("eu-west-1"));
    }
}
