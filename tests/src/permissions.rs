//! Roles and users of the S3 server with IAM, and what they may do.

use xtask::s3::Account;

use crate::web_identity::{AUDIENCE, ISSUER, WebIdentity, between};

const ACCOUNT: &str = "000000000000";

/// A list of actions in JSON without its brackets, and the bucket.
pub type Permission<'a> = (&'a str, &'a str);

pub const EVERYTHING: &str = r#""s3:*""#;
pub const READING: &str = r#""s3:ListBucket","s3:GetObject""#;

/// What a service account may do.
pub struct Role<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub account: &'a str,
    pub audience: &'a str,
    pub permissions: Vec<Permission<'a>>,
}

impl<'a> Role<'a> {
    /// Everything with the bucket.
    pub fn of(name: &'a str, namespace: &'a str, account: &'a str, bucket: &'a str) -> Self {
        Self { name, namespace, account, audience: AUDIENCE, permissions: vec![(EVERYTHING, bucket)] }
    }
}

impl WebIdentity {
    /// Returns its ARN.
    pub fn create(&self, role: &Role<'_>) -> String {
        let Role { name, namespace, account, audience, permissions } = role;
        let trust = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":"sts:AssumeRoleWithWebIdentity",
                "Principal":{{"Federated":"arn:aws:iam::{ACCOUNT}:oidc-provider/{ISSUER}"}},
                "Condition":{{"StringEquals":{{"{ISSUER}:sub":"system:serviceaccount:{namespace}:{account}",
                "{ISSUER}:aud":"{audience}"}}}}}}]}}"#
        );
        let (role, trust) = (format!("RoleName={name}"), format!("AssumeRolePolicyDocument={trust}"));
        self.iam(&["Action=CreateRole", &role, &trust]);
        self.iam(&["Action=PutRolePolicy", &role, "PolicyName=buckets", &policy(permissions)]);
        format!("arn:aws:iam::{ACCOUNT}:role/{name}")
    }

    /// Returns its keys, which do not expire.
    pub fn create_user(&self, name: &'static str, permissions: &[Permission<'_>]) -> Account {
        let user = format!("UserName={name}");
        self.iam(&["Action=CreateUser", &user]);
        self.iam(&["Action=PutUserPolicy", &user, "PolicyName=buckets", &policy(permissions)]);
        let made = self.iam(&["Action=CreateAccessKey", &user]);
        // Other accounts are constants.
        let key = |element: &str| &*between(&made, &format!("<{element}>"), "<").unwrap().leak();
        Account { name, access_key: key("AccessKeyId"), secret_key: key("SecretAccessKey") }
    }
}

fn policy(permissions: &[Permission<'_>]) -> String {
    let statement = |(actions, bucket): &Permission<'_>| {
        format!(
            r#"{{"Effect":"Allow","Action":[{actions}],"Resource":["arn:aws:s3:::{bucket}","arn:aws:s3:::{bucket}/*"]}}"#
        )
    };
    let statements: Vec<String> = permissions.iter().map(statement).collect();
    format!(r#"PolicyDocument={{"Version":"2012-10-17","Statement":[{}]}}"#, statements.join(","))
}
