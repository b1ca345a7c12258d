//! What every operation of provisioning needs: the API server, the S3 server, and the credentials between them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use kube::Client;

use super::bucket::Buckets;
use super::class::parameters::SecretRef;
use super::driver_credentials::DriverCredentials;
use super::error::ProvisionError;
use super::events::Events;
use super::kubernetes::{ApiError, Kubernetes};
use super::metrics::BucketsKept;
use super::s3::client::S3Client;
use super::s3::credentials::Credentials;

pub struct Context {
    pub kubernetes: Kubernetes,
    pub buckets: Buckets,
    pub events: Events,
    pub buckets_kept: BucketsKept,
    driver: DriverCredentials,
}

impl Context {
    pub fn new(client: &Client, s3: S3Client, driver: DriverCredentials, buckets_kept: BucketsKept) -> Self {
        let (kubernetes, events) = (Kubernetes::new(client), Events::new(client));
        Self { kubernetes, buckets: Buckets { s3 }, events, buckets_kept, driver }
    }

    /// Read live, because a Secret may just have been corrected. The driver's keys are for classes that name no Secret, and
    /// never replace a Secret that is missing or has no keys.
    pub async fn credentials(&self, secret: Option<&SecretRef>) -> Result<Credentials, ProvisionError> {
        let Some(secret) = secret else {
            return self.driver.find().await.map(Credentials::from);
        };
        let found =
            self.kubernetes.secret(&secret.namespace, &secret.name).await.map_err(|error| match error {
                ApiError::Forbidden { .. } => ProvisionError::SecretForbidden(secret.clone()),
                error => error.into(),
            })?;
        let data =
            found.ok_or_else(|| ProvisionError::SecretMissing(secret.clone()))?.data.unwrap_or_default();
        let text = |(key, value): (String, ByteString)| Some((key, String::from_utf8(value.0).ok()?));
        let data: BTreeMap<String, String> = data.into_iter().filter_map(text).collect();
        Ok(Credentials::from_secret(&data, &format!("Secret {}/{}", secret.namespace, secret.name))?)
    }
}
