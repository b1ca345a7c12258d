//! How requests are signed. Keys in a credentials file may change while the bucket is served: the node rewrites the file and
//! the next request uses them.

use std::fs;
use std::path::{Path, PathBuf};

use mounter::credentials::Credentials;
use mountpoint_s3_client::config::{
    Allocator, CredentialsProvider, CredentialsProviderStaticOptions, S3ClientAuthConfig,
};
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum KeysError {
    #[error("cannot read the credentials file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the credentials file {path} has no keys for profile `{profile}`")]
    Missing { path: PathBuf, profile: String },
    #[error("invalid keys in the credentials file")]
    Unusable,
}

/// Where the signing keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Requests are not signed.
    Unsigned,
    /// A profile with keys, read again whenever its file changes.
    File(ProfileFile),
    /// What the S3 client's own chain finds: variables, web identity, container credentials.
    Chain { profile: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileFile {
    path: PathBuf,
    profile: String,
}

/// Differs when the file or its permissions changed.
pub(crate) type Stamp = (i64, i64, u64, u64);

impl Source {
    /// In the order of the S3 client's own chain: keys in variables come before files.
    pub(crate) fn find(
        no_sign_request: bool,
        profile: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        if no_sign_request {
            return Self::Unsigned;
        }
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if profile.is_none() && set("AWS_ACCESS_KEY_ID").is_some() {
            return Self::Chain { profile: None };
        }
        let option = profile.map(str::to_owned);
        match Credentials::from_variables(variable) {
            Credentials::StaticKeys { file, profile } => {
                let file = ProfileFile { path: file.into(), profile: option.clone().unwrap_or(profile) };
                // A profile can also name a role or a program, which only the chain understands.
                if !matches!(file.keys(), Err(KeysError::Missing { .. })) {
                    return Self::File(file);
                }
            }
            Credentials::WebIdentity { .. } | Credentials::Container { .. } | Credentials::None => {}
        }
        Self::Chain { profile: option.or_else(|| set("AWS_PROFILE")) }
    }

    /// The keys, if they come from a file.
    pub(crate) fn keys(&self) -> Result<Option<Keys>, KeysError> {
        match self {
            Self::File(file) => file.keys().map(Some),
            Self::Unsigned | Self::Chain { .. } => Ok(None),
        }
    }

    /// With these keys, or with what the S3 client finds by itself.
    pub(crate) fn auth(&self, keys: Option<&Keys>) -> Result<S3ClientAuthConfig, KeysError> {
        match (self, keys) {
            (_, Some(keys)) => keys.provider(),
            (Self::Unsigned, None) => Ok(S3ClientAuthConfig::NoSigning),
            (Self::Chain { profile: Some(profile) }, None) => {
                Ok(S3ClientAuthConfig::Profile(profile.clone()))
            }
            (Self::Chain { profile: None } | Self::File(_), None) => Ok(S3ClientAuthConfig::Default),
        }
    }

    /// The file to check for changes, if any.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(&file.path),
            Self::Unsigned | Self::Chain { .. } => None,
        }
    }
}

/// `None` while there is no such file: it may be about to be replaced.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ctime(), metadata.ctime_nsec(), metadata.ino(), metadata.len()))
}

impl ProfileFile {
    fn keys(&self) -> Result<Keys, KeysError> {
        let text = fs::read_to_string(&self.path)
            .map_err(|source| KeysError::Read { path: self.path.clone(), source })?;
        Keys::parse(&text, &self.profile)
            .ok_or_else(|| KeysError::Missing { path: self.path.clone(), profile: self.profile.clone() })
    }
}

/// Cannot be printed, so that it cannot be logged.
#[derive(PartialEq, Eq)]
pub(crate) struct Keys {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keys(…)")
    }
}

impl Keys {
    /// From the text of a credentials file: sections in brackets, `key = value`.
    fn parse(text: &str, profile: &str) -> Option<Self> {
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
        Some(Self { access_key_id: access_key_id?, secret_access_key: secret_access_key?, session_token })
    }

    fn provider(&self) -> Result<S3ClientAuthConfig, KeysError> {
        let options = CredentialsProviderStaticOptions {
            access_key_id: &self.access_key_id,
            secret_access_key: &self.secret_access_key,
            session_token: self.session_token.as_deref(),
        };
        let provider = CredentialsProvider::new_static(&Allocator::default(), options);
        Ok(S3ClientAuthConfig::Provider(provider.map_err(|_| KeysError::Unusable)?))
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

    #[test]
    fn the_configured_source_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        fs::write(&path, FILE).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let find = |unsigned, profile, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            Source::find(unsigned, profile, &variable)
        };
        let file = [("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "mine")];
        let mine = Source::File(ProfileFile { path: path.clone().into(), profile: "mine".into() });
        assert_eq!(find(false, None, &file), mine);
        assert_eq!(find(true, None, &file), Source::Unsigned);
        assert_eq!(find(false, None, &[]), Source::Chain { profile: None });
        // The chain may know how to complete half a profile.
        assert_eq!(find(false, Some("half"), &file), Source::Chain { profile: Some("half".into()) });
        let keys = [("AWS_ACCESS_KEY_ID", "A"), file[0], file[1]];
        assert_eq!(find(false, None, &keys), Source::Chain { profile: None });
        assert_eq!(find(false, Some("mine"), &keys), mine);
        // A file that does not exist yet is no reason to look for other keys.
        let missing = [("AWS_SHARED_CREDENTIALS_FILE", "/no/file")];
        assert!(matches!(find(false, None, &missing), Source::File(_)));
    }
}
