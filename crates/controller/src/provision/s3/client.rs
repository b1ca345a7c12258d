//! The S3 operations that volumes need. Each is one request without retries: the queue retries.

use std::path::Path;
use std::time::Duration;

use contract::s3::{DEFAULT_REGION, S3Failure};
use http::Method;
use rusty_s3::actions::{
    AbortMultipartUpload, DeleteObjects, ListObjectsV2, ObjectIdentifier, S3Action as _,
};
use rusty_s3::{Bucket, UrlStyle};

use super::credentials::Account;
use super::endpoint::Endpoint;
use super::error::{Call, ErrorKind, Operation, S3Error};
use super::proxy::ProxyFlags;
use super::response::{self, ListingError, Upload};
use super::transport::{S3Request, S3Response, Transport, Weight};
use crate::provision::metrics::ProvisioningMetrics;

/// rusty-s3 only builds URLs here; requests are signed in headers.
const UNUSED: Duration = Duration::ZERO;

/// How buckets are named in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Addressing {
    /// `https://server/bucket`
    #[default]
    Path,
    /// `https://bucket.server`
    Virtual,
}

pub struct S3Client {
    pub endpoint: Endpoint,
    transport: Transport,
    addressing: Addressing,
}

impl S3Client {
    /// `ca_bundle` replaces the system's CAs.
    pub fn new(
        endpoint: Endpoint,
        addressing: Addressing,
        ca_bundle: Option<&Path>,
        proxy: &ProxyFlags,
        metrics: &ProvisioningMetrics,
    ) -> Self {
        Self { endpoint, transport: Transport::new(ca_bundle, proxy, metrics), addressing }
    }

    pub async fn create_bucket(&self, account: &Account, bucket: &str) -> Result<(), S3Error> {
        let region = self.region(account);
        // Other servers than Amazon's may expect something else than a region there: only send what was configured.
        let is_configured = account.region().is_some() || self.endpoint.is_amazon();
        let body = if region == DEFAULT_REGION || !is_configured {
            String::new()
        } else {
            format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            )
        };
        self.call(account, Operation::CreateBucket, bucket, Weight::Light, |at| S3Request {
            body,
            ..S3Request::new(Method::PUT, at.base_url().clone())
        })
        .await
        .map(drop)
    }

    pub async fn delete_bucket(&self, account: &Account, bucket: &str) -> Result<(), S3Error> {
        self.call(account, Operation::DeleteBucket, bucket, Weight::Light, |at| {
            S3Request::new(Method::DELETE, at.base_url().clone())
        })
        .await
        .map(drop)
    }

    /// The first keys below a prefix, or of the whole bucket.
    pub async fn list(
        &self,
        account: &Account,
        bucket: &str,
        prefix: &str,
        most: usize,
    ) -> Result<Vec<String>, S3Error> {
        let weight = if most == 1 { Weight::Light } else { Weight::List };
        let response = self
            .call(account, Operation::ListObjects, bucket, weight, |at| {
                let mut list = ListObjectsV2::new(at, None);
                list.with_prefix(prefix);
                list.with_max_keys(most);
                S3Request::new(Method::GET, list.sign(UNUSED))
            })
            .await?;
        response::keys(&response.body, most)
            .map_err(|error| self.invalid_response(account, Operation::ListObjects, bucket, &error))
    }

    /// The first unfinished uploads of a bucket.
    pub async fn uploads(
        &self,
        account: &Account,
        bucket: &str,
        most: usize,
    ) -> Result<Vec<Upload>, S3Error> {
        let response = self
            .call(account, Operation::ListUploads, bucket, Weight::List, |at| {
                let mut url = at.base_url().clone();
                url.set_query(Some(&format!("encoding-type=url&max-uploads={most}&uploads=")));
                S3Request::new(Method::GET, url)
            })
            .await?;
        response::uploads(&response.body, most)
            .map_err(|error| self.invalid_response(account, Operation::ListUploads, bucket, &error))
    }

    pub async fn abort_upload(
        &self,
        account: &Account,
        bucket: &str,
        upload: &Upload,
    ) -> Result<(), S3Error> {
        self.check_key(account, Operation::AbortUpload, bucket, &upload.key)?;
        self.call(account, Operation::AbortUpload, bucket, Weight::Light, |at| {
            let abort = AbortMultipartUpload::new(at, None, &upload.key, &upload.id);
            S3Request::new(Method::DELETE, abort.sign(UNUSED))
        })
        .await
        .map(drop)
    }

    pub async fn delete_object(&self, account: &Account, bucket: &str, key: &str) -> Result<(), S3Error> {
        self.check_key(account, Operation::DeleteObjects, bucket, key)?;
        self.call(account, Operation::DeleteObjects, bucket, Weight::Light, |at| {
            S3Request::new(Method::DELETE, at.object_url(key))
        })
        .await
        .map(drop)
    }

    /// A thousand keys at most, and only those that [`list_carries`].
    pub async fn delete_objects(
        &self,
        account: &Account,
        bucket: &str,
        keys: &[&String],
    ) -> Result<(), S3Error> {
        let objects: Vec<ObjectIdentifier> =
            keys.iter().map(|key| ObjectIdentifier::new((*key).clone())).collect();
        let response = self
            .call(account, Operation::DeleteObjects, bucket, Weight::Batch, |at| {
                let mut delete = DeleteObjects::new(at, None, objects.iter());
                delete.set_quiet(true);
                let url = delete.sign(UNUSED);
                let (body, md5) = delete.body_with_md5();
                S3Request { method: Method::POST, url, body, headers: vec![("content-md5", md5)] }
            })
            .await?;
        // The response is 200 even if objects were not deleted.
        let call = self.described(account, Operation::DeleteObjects, bucket);
        S3Error::of_object(&call, &response.body).map_or(Ok(()), Err)
    }

    /// Refuses keys whose URL would name another object, perhaps outside of the prefix.
    fn check_key(
        &self,
        account: &Account,
        operation: Operation,
        bucket: &str,
        key: &str,
    ) -> Result<(), S3Error> {
        if !key.is_empty() && !key.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Ok(());
        }
        let call = self.described(account, operation, bucket);
        Err(S3Error::answered(S3Failure::Rejected, &call, format!("no URL can address object {key:?}")))
    }

    fn invalid_response(
        &self,
        account: &Account,
        operation: Operation,
        bucket: &str,
        error: &ListingError,
    ) -> S3Error {
        S3Error::new(
            ErrorKind::InvalidResponse,
            &self.described(account, operation, bucket),
            error.to_string(),
        )
    }

    fn region<'a>(&'a self, account: &'a Account) -> &'a str {
        account.region().unwrap_or(self.endpoint.default_region())
    }

    fn described<'a>(&'a self, account: &'a Account, operation: Operation, bucket: &'a str) -> Call<'a> {
        let endpoint = self.endpoint.address(account.region());
        Call { operation, bucket, endpoint, region: self.region(account) }
    }

    async fn call(
        &self,
        account: &Account,
        operation: Operation,
        bucket: &str,
        weight: Weight,
        build: impl FnOnce(&Bucket) -> S3Request,
    ) -> Result<S3Response<'_>, S3Error> {
        let call = self.described(account, operation, bucket);
        let style = match self.addressing {
            Addressing::Path => UrlStyle::Path,
            Addressing::Virtual => UrlStyle::VirtualHost,
        };
        let url = self.endpoint.url(call.region).ok_or_else(|| {
            S3Error::answered(S3Failure::WrongRegion, &call, "not a valid region".to_owned())
        })?;
        let at = Bucket::new(url, style, bucket.to_owned(), call.region.to_owned())
            .map_err(|error| S3Error::answered(S3Failure::InvalidBucketName, &call, error.to_string()))?;
        self.transport.send(&call, &account.keys, weight, || build(&at)).await
    }
}

/// Whether a list of keys in XML can name it: it cannot carry most control characters, and reads a carriage return as a line
/// feed, which would be another object.
pub fn list_carries(key: &str) -> bool {
    !key.contains(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}
