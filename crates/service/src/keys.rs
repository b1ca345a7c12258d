//! Where keys to the S3 server are found: in a Secret, or among the driver's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use contract::keys::Keys;
use thiserror::Error;

/// As a Secret has them.
const ACCESS_KEY_ID: &str = "access_key_id";
const SECRET_ACCESS_KEY: &str = "secret_access_key";
const SESSION_TOKEN: &str = "session_token";
/// No key of any provider is longer; session tokens are.
const LONGEST_KEY: usize = 128;
const LONGEST_TOKEN: usize = 8192;

/// Each names the key, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeysError {
    #[error("{0} has no key `{1}`: add it")]
    Missing(String, &'static str),
    #[error("{0}: `{1}` is empty: set it")]
    Empty(String, &'static str),
    #[error("{0}: `{1}` is not valid: correct it")]
    Impossible(String, &'static str),
}

/// The keys of a Secret. `whose` names it in errors.
pub fn of_secret(secret: &BTreeMap<String, String>, whose: &str) -> Result<Keys, KeysError> {
    let get = |key: &'static str| match secret.get(key).map(|value| value.trim()) {
        None => Err(KeysError::Missing(whose.to_owned(), key)),
        Some("") => Err(KeysError::Empty(whose.to_owned(), key)),
        Some(value) => Ok(value),
    };
    let (id, key, token) = (get(ACCESS_KEY_ID)?, get(SECRET_ACCESS_KEY)?, get(SESSION_TOKEN).ok());
    let fits = |value: &str, others: &str| {
        value.len() <= LONGEST_KEY && value.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    let token_fits =
        |token: &str| token.len() <= LONGEST_TOKEN && token.chars().all(|c| c.is_ascii_graphic());
    for (name, is_possible) in [
        (ACCESS_KEY_ID, fits(id, "")),
        (SECRET_ACCESS_KEY, fits(key, "/+-=")),
        (SESSION_TOKEN, token.is_none_or(token_fits)),
    ] {
        if !is_possible {
            return Err(KeysError::Impossible(whose.to_owned(), name));
        }
    }
    Ok(static_keys(id.to_owned(), key.to_owned(), token.map(str::to_owned)))
}

fn static_keys(access_key_id: String, secret_access_key: String, session_token: Option<String>) -> Keys {
    let (secret_access_key, session_token) = (secret_access_key.into(), session_token.map(Into::into));
    Keys { access_key_id, secret_access_key, session_token, expires: None }
}

/// Where the installation's own keys are: a mounted Secret, read every time, or variables.
#[derive(Clone, Debug)]
pub struct DriverKeys {
    pub folder: Option<PathBuf>,
}

impl DriverKeys {
    pub fn find(&self) -> Option<Keys> {
        let get = |key: &str, variable: &str| {
            let file = self.folder.as_ref().and_then(|folder| fs::read_to_string(folder.join(key)).ok());
            let value = file.or_else(|| std::env::var(variable).ok()).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        Some(static_keys(
            get(ACCESS_KEY_ID, "AWS_ACCESS_KEY_ID")?,
            get(SECRET_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY")?,
            get(SESSION_TOKEN, "AWS_SESSION_TOKEN"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pairs: &[(&str, &str)]) -> Result<Keys, KeysError> {
        let secret = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        of_secret(&secret, "Secret ns/keys")
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_named_and_never_shown() {
        let id = (ACCESS_KEY_ID, " AKIA ");
        let secret = (SECRET_ACCESS_KEY, "se/cr+et-x=\n");
        let found = keys(&[id, secret, ("other", "x"), (SESSION_TOKEN, "")]).unwrap();
        assert_eq!(found, static_keys("AKIA".to_owned(), "se/cr+et-x=".to_owned(), None));
        let whose = || "Secret ns/keys".to_owned();
        for (pairs, error) in [
            (&[id][..], KeysError::Missing(whose(), SECRET_ACCESS_KEY)),
            (&[id, (SECRET_ACCESS_KEY, " ")], KeysError::Empty(whose(), SECRET_ACCESS_KEY)),
            (&[(ACCESS_KEY_ID, "s3cret s3cret"), secret], KeysError::Impossible(whose(), ACCESS_KEY_ID)),
            (&[id, (SECRET_ACCESS_KEY, "s3cret\nx")], KeysError::Impossible(whose(), SECRET_ACCESS_KEY)),
            (&[id, secret, (SESSION_TOKEN, "s3cret\nx")], KeysError::Impossible(whose(), SESSION_TOKEN)),
        ] {
            assert!(!error.to_string().contains("s3cret"), "{error}");
            assert_eq!(keys(pairs), Err(error));
        }
    }

    #[test]
    fn the_drivers_keys_are_read_from_their_folder_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let driver = DriverKeys { folder: Some(folder.path().to_owned()) };
        for (id, secret) in [("ONE", "1"), ("TWO", "2")] {
            fs::write(folder.path().join(ACCESS_KEY_ID), format!("{id}\n")).unwrap();
            fs::write(folder.path().join(SECRET_ACCESS_KEY), secret).unwrap();
            let keys = driver.find().unwrap();
            assert_eq!(keys, static_keys(id.to_owned(), secret.to_owned(), None));
        }
    }
}
