//! The driver's own identity towards S3, for installations without static keys. The variables are those that the webhooks of EKS
//! set in the driver's pods, and that the chart sets where there are no such webhooks.

use std::path::PathBuf;

use clap::Args;

/// Name of the sessions in which the driver uses its role, for the S3 server's logs.
pub const SESSION_NAME: &str = "s3-csi-driver";

/// Of the driver's own service account, or of the instance.
#[derive(Args, Clone, Debug, Default)]
pub struct IdentityFlags {
    /// Role that the driver's service account may assume, for installations without static keys.
    #[arg(long, env = "AWS_ROLE_ARN", default_value = "")]
    pub role_arn: String,

    /// File with a token of the driver's service account for STS; needed for `--role-arn`.
    #[arg(long, env = "AWS_WEB_IDENTITY_TOKEN_FILE")]
    pub web_identity_token_file: Option<PathBuf>,

    /// URL of an STS server other than Amazon's. If empty, Amazon's in the bucket's region.
    #[arg(long, env = "AWS_ENDPOINT_URL_STS", default_value = "")]
    pub sts_endpoint_url: String,

    /// URL of the EKS Pod Identity agent that has a role for the driver's service account.
    #[arg(long, env = "AWS_CONTAINER_CREDENTIALS_FULL_URI", default_value = "")]
    pub container_credentials_uri: String,

    /// File with a token of the driver's service account for that agent.
    #[arg(long, env = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")]
    pub container_token_file: Option<PathBuf>,

    /// URL of the cloud's metadata service, to use the role of the instance; it is not asked if empty.
    #[arg(long, env = "AWS_EC2_METADATA_SERVICE_ENDPOINT", default_value = "")]
    pub instance_metadata_url: String,
}

/// Where the driver's temporary keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverIdentity {
    WebIdentity { role_arn: String, token_file: PathBuf },
    PodIdentity { uri: String, token_file: PathBuf },
    InstanceProfile { url: String },
}

impl IdentityFlags {
    /// The first that is configured. Static keys come before all of them.
    pub fn identity(&self) -> Option<DriverIdentity> {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        if let (Some(role_arn), Some(token_file)) = (some(&self.role_arn), &self.web_identity_token_file) {
            return Some(DriverIdentity::WebIdentity { role_arn, token_file: token_file.clone() });
        }
        if let (Some(uri), Some(token_file)) =
            (some(&self.container_credentials_uri), &self.container_token_file)
        {
            return Some(DriverIdentity::PodIdentity { uri, token_file: token_file.clone() });
        }
        some(&self.instance_metadata_url).map(|url| DriverIdentity::InstanceProfile { url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_complete_identity_is_used() {
        let all = IdentityFlags {
            role_arn: "role".into(),
            web_identity_token_file: Some("token".into()),
            sts_endpoint_url: String::new(),
            container_credentials_uri: "http://agent".into(),
            container_token_file: Some("token".into()),
            instance_metadata_url: "http://metadata".into(),
        };
        assert!(matches!(all.identity(), Some(DriverIdentity::WebIdentity { .. })));
        let no_role = IdentityFlags { role_arn: String::new(), ..all };
        assert!(matches!(no_role.identity(), Some(DriverIdentity::PodIdentity { .. })));
        let instance = IdentityFlags { container_token_file: None, ..no_role };
        assert!(matches!(instance.identity(), Some(DriverIdentity::InstanceProfile { .. })));
        assert_eq!(IdentityFlags::default().identity(), None);
    }
}
