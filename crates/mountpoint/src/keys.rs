//! Keys that requests are signed with.

use std::time::SystemTime;

use mountpoint_s3_client::config::{
    Allocator, CredentialsProvider, CredentialsProviderStaticOptions, S3ClientAuthConfig,
};

/// Cannot be printed, so that it cannot be logged.
#[derive(PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: String,
    pub(crate) session_token: Option<String>,
    /// Of temporary keys that this process can renew.
    pub(crate) expires: Option<SystemTime>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keys(…)")
    }
}

impl Keys {
    /// From the text of a credentials file: sections in brackets, `key = value`.
    pub(crate) fn parse(text: &str, profile: &str) -> Option<Self> {
        let mut inside = false;
        let (mut access_key_id, mut secret_access_key, mut session_token) = (None, None, None);
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                let section = section.trim();
                inside = section.strip_prefix("profile ").unwrap_or(section).trim() == profile;
            } else if inside && let Some((key, value)) = line.split_once('=') {
                let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
                match key.trim() {
                    "aws_access_key_id" => access_key_id = value,
                    "aws_secret_access_key" => secret_access_key = value,
                    "aws_session_token" => session_token = value,
                    _ => {}
                }
            }
        }
        Some(Self {
            access_key_id: access_key_id?,
            secret_access_key: secret_access_key?,
            session_token,
            expires: None,
        })
    }

    /// Temporary ones.
    pub(crate) fn exchanged(keys: exchange::Keys) -> Self {
        Self {
            access_key_id: keys.access_key_id,
            secret_access_key: keys.secret_access_key,
            session_token: keys.session_token,
            expires: Some(keys.expires),
        }
    }

    /// `None` if the library does not accept them.
    pub(crate) fn provider(&self) -> Option<S3ClientAuthConfig> {
        let options = CredentialsProviderStaticOptions {
            access_key_id: &self.access_key_id,
            secret_access_key: &self.secret_access_key,
            session_token: self.session_token.as_deref(),
        };
        let provider = CredentialsProvider::new_static(&Allocator::default(), options);
        provider.ok().map(S3ClientAuthConfig::Provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[other]\naws_access_key_id=NO\naws_secret_access_key=NO\n\n[profile mine]\n \
                        aws_access_key_id = AKIA \naws_secret_access_key=se=cret\n[half]\naws_access_key_id=A\n";

    #[test]
    fn keys_are_read_from_their_profile() {
        let keys = Keys::parse(FILE, "mine").unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.secret_access_key.as_str()), ("AKIA", "se=cret"));
        assert!(keys.session_token.is_none());
        assert!(Keys::parse(FILE, "half").is_none() && Keys::parse(FILE, "none").is_none());
        let token = "[default]\naws_access_key_id=A\naws_secret_access_key=S\naws_session_token=T\n";
        assert_eq!(Keys::parse(token, "default").unwrap().session_token.as_deref(), Some("T"));
    }
}
