//! How requests are signed. Keys may change while the bucket is served: the node rewrites the file that has them, and the next
//! request uses them; temporary keys are renewed before they expire.

use std::fs;
use std::path::{Path, PathBuf};

use contract::keys::Keys;
use exchange::{Exchange, ExchangeError, Server};
use mounter::credentials::Credentials;
use mounter::deadlines::S3_ANSWER;
use mountpoint_s3_client::config::S3ClientAuthConfig;
use thiserror::Error;

use crate::keys;

const _: () = assert!(
    2 * exchange::ANSWER.as_secs() <= S3_ANSWER.as_secs(),
    "S3 must still have time to answer after keys were exchanged"
);

#[derive(Debug, Error)]
pub(crate) enum KeysError {
    #[error("cannot read the credentials file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the credentials file {path} has no keys for profile `{profile}`")]
    Missing { path: PathBuf, profile: String },
    #[error("invalid keys in the credentials file")]
    Unusable,
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// Where the signing keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Requests are not signed.
    Unsigned,
    /// A profile with keys, read again whenever its file changes.
    File(ProfileFile),
    /// A server that gives temporary keys.
    Exchange(Exchange),
    /// What the S3 client's own chain finds: variables, or a profile that names a role or a program.
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
        ca_bundle: Option<&Path>,
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
        let server = match Credentials::from_variables(variable) {
            Credentials::StaticKeys { file, profile } => {
                let file = ProfileFile { path: file.into(), profile: option.clone().unwrap_or(profile) };
                // A profile can also name a role or a program, which only the chain understands.
                if !matches!(file.keys(), Err(KeysError::Missing { .. })) {
                    return Self::File(file);
                }
                None
            }
            Credentials::WebIdentity { token_file, role_arn, session_name, sts_endpoint } => {
                let (endpoint, token_file) = (sts_endpoint, token_file.into());
                Some(Server::Sts { endpoint, role_arn, session_name, token_file })
            }
            Credentials::PodIdentity { uri, token_file } => {
                Some(Server::Agent { uri, token_file: token_file.into() })
            }
            Credentials::InstanceProfile { url } => Some(Server::Metadata { url }),
            Credentials::None => None,
        };
        if let Some(server) = server.filter(|_| option.is_none()) {
            return Self::Exchange(Exchange { server, ca_bundle: ca_bundle.map(Path::to_owned) });
        }
        Self::Chain { profile: option.or_else(|| set("AWS_PROFILE")) }
    }

    /// The keys, unless the S3 client finds them by itself. Those of an exchange take a request.
    pub(crate) fn keys(&self) -> Result<Option<Keys>, KeysError> {
        match self {
            Self::File(file) => file.keys().map(Some),
            Self::Exchange(exchange) => Ok(Some(exchange.keys()?)),
            Self::Unsigned | Self::Chain { .. } => Ok(None),
        }
    }

    /// With these keys, or with what the S3 client finds by itself.
    pub(crate) fn auth(&self, keys: Option<&Keys>) -> Result<S3ClientAuthConfig, KeysError> {
        match (self, keys) {
            (_, Some(keys)) => keys::provider(keys).ok_or(KeysError::Unusable),
            (Self::Unsigned, None) => Ok(S3ClientAuthConfig::NoSigning),
            (Self::Chain { profile: Some(profile) }, None) => {
                Ok(S3ClientAuthConfig::Profile(profile.clone()))
            }
            (Self::Chain { profile: None } | Self::File(_) | Self::Exchange(_), None) => {
                Ok(S3ClientAuthConfig::Default)
            }
        }
    }

    /// The file to check for changes, if any.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(&file.path),
            Self::Unsigned | Self::Exchange(_) | Self::Chain { .. } => None,
        }
    }

    /// Whose keys they are, for messages.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Exchange(exchange) => exchange.identity(),
            Self::Unsigned | Self::File(_) | Self::Chain { .. } => "these credentials".to_owned(),
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
        keys::parse(&text, &self.profile)
            .ok_or_else(|| KeysError::Missing { path: self.path.clone(), profile: self.profile.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[mine]\naws_access_key_id=A\naws_secret_access_key=S\n[half]\naws_access_key_id=A\n";

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
            Source::find(unsigned, profile, None, &variable)
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
        let web_identity = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "token"),
            ("AWS_ROLE_ARN", "role"),
            ("AWS_ROLE_SESSION_NAME", "session"),
            ("AWS_ENDPOINT_URL_STS", "http://sts"),
        ];
        let Source::Exchange(exchange) = find(false, None, &web_identity) else { panic!() };
        assert_eq!(exchange.identity(), "role role");
        // A file that does not exist yet is no reason to look for other keys.
        let missing = [("AWS_SHARED_CREDENTIALS_FILE", "/no/file")];
        assert!(matches!(find(false, None, &missing), Source::File(_)));
    }
}
