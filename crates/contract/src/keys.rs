//! Keys that requests to an S3 server are signed with. What is secret of them is not shown by `Debug`.

use std::time::SystemTime;

use secrecy::{ExposeSecret as _, SecretString};

#[derive(Clone, Debug)]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: SecretString,
    pub session_token: Option<SecretString>,
    /// Set for temporary keys that the program which has them can renew.
    pub expires: Option<SystemTime>,
}

impl Eq for Keys {}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        let token = |keys: &Self| keys.session_token.as_ref().map(|token| token.expose_secret().to_owned());
        self.access_key_id == other.access_key_id
            && self.secret_access_key.expose_secret() == other.secret_access_key.expose_secret()
            && token(self) == token(other)
            && self.expires == other.expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_shown() {
        let keys = |secret: &str, token: Option<&str>| Keys {
            access_key_id: "AKIA".to_owned(),
            secret_access_key: secret.into(),
            session_token: token.map(Into::into),
            expires: None,
        };
        let shown = format!("{:?}", keys("s3cret", Some("t0ken")));
        assert!(shown.contains("AKIA") && !shown.contains("s3cret") && !shown.contains("t0ken"), "{shown}");
        assert_eq!(keys("s3cret", Some("t0ken")), keys("s3cret", Some("t0ken")));
        assert_ne!(keys("s3cret", Some("t0ken")), keys("s3cret", None));
        assert_ne!(keys("s3cret", None), keys("other", None));
    }
}
