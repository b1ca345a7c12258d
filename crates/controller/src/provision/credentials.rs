//! Keys to the S3 server: of a Secret, or the driver's own. Never shown, never logged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use thiserror::Error;

use super::storage_class::is_region;

/// Keys of a Secret.
const ACCESS_KEY_ID: &str = "access_key_id";
const SECRET_ACCESS_KEY: &str = "secret_access_key";
const SESSION_TOKEN: &str = "session_token";
const REGION: &str = "region";
/// No key of any provider is longer; session tokens are.
const LONGEST_KEY: usize = 128;
const LONGEST_TOKEN: usize = 8192;

/// Each names the key, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeysError {
    #[error("{0} has no key `{1}`: add it")]
    Missing(String, &'static str),
    #[error("the key `{1}` of {0} is empty: give it a value")]
    Empty(String, &'static str),
    #[error("the key `{1}` of {0} is not one that S3 could have given: correct it")]
    Impossible(String, &'static str),
    #[error(
        "the class names no provisioner secret, and the driver has no keys of its own: put access_key_id and \
         secret_access_key into the driver's Secret, or give the class a provisioner secret"
    )]
    NoDriverKeys,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
    /// Where the account's buckets are, if its Secret says so.
    pub region: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Keys(…)")
    }
}

impl Keys {
    /// `whose` names the Secret in errors.
    pub fn of_secret(secret: &BTreeMap<String, String>, whose: &str) -> Result<Self, KeysError> {
        let get = |key: &'static str| match secret.get(key).map(|value| value.trim()) {
            None => Err(KeysError::Missing(whose.to_owned(), key)),
            Some("") => Err(KeysError::Empty(whose.to_owned(), key)),
            Some(value) => Ok(value.to_owned()),
        };
        let optional = |key: &'static str| {
            let value = secret.get(key).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let impossible = |key: &'static str| KeysError::Impossible(whose.to_owned(), key);
        let fits = |value: &str, others: &str| {
            value.len() <= LONGEST_KEY
                && value.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
        };
        let keys = Self {
            access_key_id: get(ACCESS_KEY_ID)?,
            secret_access_key: get(SECRET_ACCESS_KEY)?,
            session_token: optional(SESSION_TOKEN),
            region: optional(REGION),
        };
        if !fits(&keys.access_key_id, "") {
            return Err(impossible(ACCESS_KEY_ID));
        }
        if !fits(&keys.secret_access_key, "/+-=") {
            return Err(impossible(SECRET_ACCESS_KEY));
        }
        let graphic =
            |token: &String| token.len() <= LONGEST_TOKEN && token.chars().all(|c| c.is_ascii_graphic());
        if !keys.session_token.as_ref().is_none_or(graphic) {
            return Err(impossible(SESSION_TOKEN));
        }
        if !keys.region.as_deref().is_none_or(is_region) {
            return Err(impossible(REGION));
        }
        Ok(keys)
    }
}

/// Where the installation's own keys are: a mounted Secret, read anew every time, or variables.
#[derive(Clone, Debug)]
pub struct DriverKeys {
    pub folder: Option<PathBuf>,
}

impl DriverKeys {
    pub fn find(&self) -> Result<Keys, KeysError> {
        let get = |key: &str, variable: &str| {
            let file = self.folder.as_ref().and_then(|folder| fs::read_to_string(folder.join(key)).ok());
            let value = file.or_else(|| std::env::var(variable).ok()).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        Ok(Keys {
            access_key_id: get(ACCESS_KEY_ID, "AWS_ACCESS_KEY_ID").ok_or(KeysError::NoDriverKeys)?,
            secret_access_key: get(SECRET_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY")
                .ok_or(KeysError::NoDriverKeys)?,
            session_token: get(SESSION_TOKEN, "AWS_SESSION_TOKEN"),
            region: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pairs: &[(&str, &str)]) -> Result<Keys, KeysError> {
        let secret = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Keys::of_secret(&secret, "Secret ns/keys")
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_told_apart() {
        let id = (ACCESS_KEY_ID, "AKIA");
        let secret = (SECRET_ACCESS_KEY, " se/cr+et= ");
        let found = keys(&[id, secret, ("other", "x")]).unwrap();
        assert_eq!(found.secret_access_key, "se/cr+et=");
        assert_eq!(format!("{found:?}"), "Keys(…)");
        let whose = || "Secret ns/keys".to_owned();
        assert_eq!(keys(&[id]), Err(KeysError::Missing(whose(), SECRET_ACCESS_KEY)));
        assert_eq!(keys(&[id, (SECRET_ACCESS_KEY, " ")]), Err(KeysError::Empty(whose(), SECRET_ACCESS_KEY)));
        assert_eq!(
            keys(&[(ACCESS_KEY_ID, "a b"), secret]),
            Err(KeysError::Impossible(whose(), ACCESS_KEY_ID))
        );
        assert_eq!(
            keys(&[id, secret, (SESSION_TOKEN, "a\nb")]),
            Err(KeysError::Impossible(whose(), SESSION_TOKEN))
        );
        assert_eq!(keys(&[id, secret, (REGION, "a b")]), Err(KeysError::Impossible(whose(), REGION)));
        assert_eq!(keys(&[id, secret, (SESSION_TOKEN, "")]).unwrap().session_token, None);
    }

    #[test]
    fn errors_never_show_a_value() {
        let error =
            keys(&[(ACCESS_KEY_ID, "not possible"), (SECRET_ACCESS_KEY, "s")]).unwrap_err().to_string();
        assert!(!error.contains("not possible"), "{error}");
    }

    #[test]
    fn the_drivers_keys_are_read_from_its_folder() {
        let folder = std::env::temp_dir().join(format!("s3-csi-keys-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(ACCESS_KEY_ID), "AKIA\n").unwrap();
        fs::write(folder.join(SECRET_ACCESS_KEY), "secret").unwrap();
        let keys = DriverKeys { folder: Some(folder.clone()) }.find().unwrap();
        fs::remove_dir_all(folder).unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.session_token), ("AKIA", None));
    }
}
