//! What the requests of a mount are signed with, from the node, which chooses, to the mount process, which signs. The
//! choice travels as the AWS SDKs' environment variables: `mount-s3` reads them, and so do mounters of older releases.
//! Secrets travel in files that the node rewrites while the mount is served, never in the request itself.

/// File names are relative to the folder that the node and the Mountpoint Pod share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Access keys in a profile of a shared credentials file.
    StaticKeys { file: String, profile: String },
    /// A service account token that STS exchanges for keys of the role.
    WebIdentity { token_file: String, role_arn: String, session_name: String, sts_endpoint: String },
    /// A token that an agent on the node exchanges for keys, as with EKS Pod Identity.
    PodIdentity { uri: String, token_file: String },
    /// Keys of the instance, from the cloud's metadata service.
    InstanceProfile { url: String },
    /// Requests are not signed.
    None,
}

const KEYS_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
const PROFILE: &str = "AWS_PROFILE";
const WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const ROLE_ARN: &str = "AWS_ROLE_ARN";
const SESSION_NAME: &str = "AWS_ROLE_SESSION_NAME";
const STS_ENDPOINT: &str = "AWS_ENDPOINT_URL_STS";
const CONTAINER_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const CONTAINER_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
const METADATA_URL: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
const METADATA_DISABLED: &str = "AWS_EC2_METADATA_DISABLED";
const DEFAULT_PROFILE: &str = "default";

impl Credentials {
    /// For the environment of the mount process.
    pub fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let variables: &[(&str, &str)] = match self {
            Self::StaticKeys { file, profile } => &[(KEYS_FILE, file), (PROFILE, profile)],
            Self::WebIdentity { token_file, role_arn, session_name, sts_endpoint } => &[
                (WEB_IDENTITY_TOKEN_FILE, token_file),
                (ROLE_ARN, role_arn),
                (SESSION_NAME, session_name),
                (STS_ENDPOINT, sts_endpoint),
            ],
            Self::PodIdentity { uri, token_file } => {
                &[(CONTAINER_URI, uri), (CONTAINER_TOKEN_FILE, token_file)]
            }
            // The mounter forbids it otherwise.
            Self::InstanceProfile { url } => &[(METADATA_URL, url), (METADATA_DISABLED, "false")],
            Self::None => &[],
        };
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect::<Vec<_>>().into_iter()
    }

    /// From the environment of the mount process. Files come before identities, as in the SDKs' own order.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(file) = set(KEYS_FILE) {
            let profile = set(PROFILE).unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
            return Self::StaticKeys { file, profile };
        }
        if let (Some(token_file), Some(role_arn), Some(session_name), Some(sts_endpoint)) =
            (set(WEB_IDENTITY_TOKEN_FILE), set(ROLE_ARN), set(SESSION_NAME), set(STS_ENDPOINT))
        {
            return Self::WebIdentity { token_file, role_arn, session_name, sts_endpoint };
        }
        if let (Some(uri), Some(token_file)) = (set(CONTAINER_URI), set(CONTAINER_TOKEN_FILE)) {
            return Self::PodIdentity { uri, token_file };
        }
        match (set(METADATA_URL), set(METADATA_DISABLED).as_deref()) {
            (Some(url), Some("false")) => Self::InstanceProfile { url },
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_kind_reads_back_from_its_variables() {
        let text = str::to_owned;
        for credentials in [
            Credentials::StaticKeys { file: text("credentials/mp-1"), profile: text("s3-csi") },
            Credentials::WebIdentity {
                token_file: text("credentials/token"),
                role_arn: text("arn:aws:iam::1:role/reader"),
                session_name: text("pod"),
                sts_endpoint: text("https://sts.eu-west-1.amazonaws.com"),
            },
            Credentials::PodIdentity {
                uri: text("http://169.254.170.23/v1/credentials"),
                token_file: text("token"),
            },
            Credentials::InstanceProfile { url: text("http://169.254.169.254") },
            Credentials::None,
        ] {
            let variables: BTreeMap<_, _> = credentials.variables().collect();
            assert_eq!(Credentials::from_variables(&|name| variables.get(name).cloned()), credentials);
        }
    }
}
