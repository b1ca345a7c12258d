//! Identities that the mount process exchanges for temporary keys: the workload's own (`authenticationSource: pod`), by the
//! service account tokens that the kubelet sends, and the driver's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use mounter::credentials::Credentials;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use service::driver_identity::{DriverIdentity, SESSION_NAME};
use thiserror::Error;

/// Key of the tokens in the volume context or, if the `CSIDriver` has `serviceAccountTokenInSecrets`, in the secrets.
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const STS_AUDIENCE: &str = "sts.amazonaws.com";
const AGENT_AUDIENCE: &str = "pods.eks.amazonaws.com";
/// STS accepts 2 to 64 letters, digits and `_+=,.@-`; names of Kubernetes objects have no others.
const LONGEST_SESSION_NAME: usize = 64;

#[derive(Debug, Error)]
pub enum IdentityError {
    #[error(
        "service account `{service_account}` in namespace `{namespace}` has no role: annotate it with \
         `eks.amazonaws.com/role-arn` and recreate the pod, or set `podIdentity.eks.enabled` in the driver's Helm values if it \
         has an EKS Pod Identity association"
    )]
    NoRole { namespace: String, service_account: String },
    #[error(
        "the kubelet sent no token for service account `{service_account}` in namespace `{namespace}` with audience \
         `{audience}`: set `podIdentity.enabled` in the driver's Helm values"
    )]
    NoToken { namespace: String, service_account: String, audience: &'static str },
    #[error("cannot read the token of the driver's service account in {path}: {source}")]
    DriverToken { path: PathBuf, source: io::Error },
}

/// What the mount process does with the driver's identity, and the token to write into `token_file` for it, if any.
pub fn of_driver(
    identity: &DriverIdentity,
    token_file: String,
    sts_endpoint: &str,
) -> Result<(Option<String>, Credentials), IdentityError> {
    let token = |path: &PathBuf| {
        let error = |source| IdentityError::DriverToken { path: path.clone(), source };
        fs::read_to_string(path).map(Some).map_err(error)
    };
    Ok(match identity {
        DriverIdentity::WebIdentity { role_arn, token_file: held } => {
            let (role_arn, session_name) = (role_arn.clone(), SESSION_NAME.to_owned());
            let sts_endpoint = sts_endpoint.to_owned();
            (token(held)?, Credentials::WebIdentity { token_file, role_arn, session_name, sts_endpoint })
        }
        DriverIdentity::PodIdentity { uri, token_file: held } => {
            (token(held)?, Credentials::PodIdentity { uri: uri.clone(), token_file })
        }
        DriverIdentity::InstanceProfile { url } => (None, Credentials::InstanceProfile { url: url.clone() }),
    })
}

/// By audience.
#[derive(Clone, Debug, Default)]
pub struct Tokens(BTreeMap<String, SecretString>);

impl Tokens {
    /// From `{"audience": {"token": "…", "expirationTimestamp": "…"}}`; whatever is not so is no token.
    pub fn parse(text: &str) -> Self {
        let parsed: BTreeMap<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let token = |(audience, held): (String, Value)| {
            let token = held["token"].as_str().filter(|token| !token.is_empty())?;
            Some((audience, SecretString::from(token)))
        };
        Self(parsed.into_iter().filter_map(token).collect())
    }
}

/// Everything that the choice of an exchange depends on.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    pub namespace: &'a str,
    pub service_account: &'a str,
    pub tokens: &'a Tokens,
    /// As the controller read it in the service account's annotation; may be empty.
    pub role_arn: &'a str,
    pub sts_endpoint: &'a str,
    /// Of EKS Pod Identity, if this installation uses it.
    pub agent_url: Option<&'a str>,
}

impl Workload<'_> {
    /// The token to write into `token_file`, and what the mount process does with it. A role comes before an association, as
    /// in Amazon's driver.
    pub fn exchange(&self, token_file: String) -> Result<(Option<String>, Credentials), IdentityError> {
        if !self.role_arn.is_empty() {
            let credentials = Credentials::WebIdentity {
                token_file,
                role_arn: self.role_arn.to_owned(),
                session_name: self.session_name(),
                sts_endpoint: self.sts_endpoint.to_owned(),
            };
            return Ok((Some(self.token(STS_AUDIENCE)?), credentials));
        }
        let Some(uri) = self.agent_url else {
            let (namespace, service_account) = (self.namespace.to_owned(), self.service_account.to_owned());
            return Err(IdentityError::NoRole { namespace, service_account });
        };
        let credentials = Credentials::PodIdentity { uri: uri.to_owned(), token_file };
        Ok((Some(self.token(AGENT_AUDIENCE)?), credentials))
    }

    fn token(&self, audience: &'static str) -> Result<String, IdentityError> {
        let missing = || IdentityError::NoToken {
            namespace: self.namespace.to_owned(),
            service_account: self.service_account.to_owned(),
            audience,
        };
        self.tokens.0.get(audience).map(|token| token.expose_secret().to_owned()).ok_or_else(missing)
    }

    /// For the S3 server's logs. The workloads of a service account share a mount, so it names no pod.
    fn session_name(&self) -> String {
        let name = format!("s3-csi-{}-{}", self.namespace, self.service_account);
        name.chars().take(LONGEST_SESSION_NAME).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = r#"{"sts.amazonaws.com": {"token": "for-sts", "expirationTimestamp": "2030-01-01T00:00:00Z"},
                           "pods.eks.amazonaws.com": {"token": "for-agent"}, "empty": {"token": ""}}"#;

    fn workload<'a>(tokens: &'a Tokens, role_arn: &'a str, agent_url: Option<&'a str>) -> Workload<'a> {
        let (namespace, service_account, sts_endpoint) = ("team-a", "reader", "https://sts.test");
        Workload { namespace, service_account, tokens, role_arn, sts_endpoint, agent_url }
    }

    #[test]
    fn a_role_comes_before_an_association() {
        let tokens = Tokens::parse(SENT);
        let agent = Some("http://169.254.170.23/v1/credentials");
        let role = workload(&tokens, "arn:aws:iam::1:role/a", agent);
        let (token, credentials) = role.exchange("file".into()).unwrap();
        assert_eq!(token.as_deref(), Some("for-sts"));
        let expected = Credentials::WebIdentity {
            token_file: "file".into(),
            role_arn: "arn:aws:iam::1:role/a".into(),
            session_name: "s3-csi-team-a-reader".into(),
            sts_endpoint: "https://sts.test".into(),
        };
        assert_eq!(credentials, expected);
        let association = workload(&tokens, "", agent);
        let (token, credentials) = association.exchange("file".into()).unwrap();
        assert_eq!(token.as_deref(), Some("for-agent"));
        assert!(matches!(credentials, Credentials::PodIdentity { .. }));
    }

    #[test]
    fn errors_name_annotation_account_and_namespace() {
        let tokens = Tokens::default();
        let error = workload(&tokens, "", None).exchange("file".into()).unwrap_err().to_string();
        for part in ["eks.amazonaws.com/role-arn", "`reader`", "`team-a`"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let error = workload(&tokens, "role", None).exchange("file".into()).unwrap_err().to_string();
        assert!(error.contains("`sts.amazonaws.com`") && error.contains("podIdentity.enabled"), "{error}");
    }

    #[test]
    fn tokens_are_not_shown_and_garbage_is_none() {
        let tokens = Tokens::parse(SENT);
        let shown = format!("{tokens:?}");
        assert!(shown.contains("sts.amazonaws.com") && !shown.contains("for-"), "{shown}");
        for garbage in ["", "no", "[]", r#"{"a": 1}"#, r#"{"a": {}}"#] {
            assert!(Tokens::parse(garbage).0.is_empty(), "{garbage}");
        }
    }

    #[test]
    fn the_drivers_token_is_read_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        let role = DriverIdentity::WebIdentity { role_arn: "role".into(), token_file: token_file.clone() };
        let given = || of_driver(&role, "file".into(), "https://sts.test");
        assert!(given().unwrap_err().to_string().contains(token_file.to_str().unwrap()));
        for token in ["one", "two"] {
            fs::write(&token_file, token).unwrap();
            let (read, credentials) = given().unwrap();
            assert_eq!(read.as_deref(), Some(token));
            assert!(matches!(credentials, Credentials::WebIdentity { .. }));
        }
    }

    #[test]
    fn a_session_name_is_cut() {
        let (tokens, long) = (Tokens::default(), "x".repeat(200));
        let workload = Workload { service_account: &long, ..workload(&tokens, "", None) };
        assert_eq!(workload.session_name().len(), LONGEST_SESSION_NAME);
    }
}
