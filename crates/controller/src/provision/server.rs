//! The S3 server, as far as volumes need it: one request, one answer or a [`Fault`], no retries underneath.

use std::path::Path;
use std::time::Duration;

use http::Method;
use rusty_s3::actions::{
    AbortMultipartUpload, DeleteObjects, ListObjectsV2, ObjectIdentifier, S3Action as _,
};
use rusty_s3::{Bucket, UrlStyle};

use super::credentials::Credentials;
use super::endpoint::{DEFAULT_REGION, Endpoint};
use super::exchange::{Answer, Asked, Exchange};
use super::fault::{Call, Fault, Operation};
use super::kind::Kind;
use super::listing::{self, ListingError, Upload};
use crate::metrics::S3Calls;

/// Of a URL that is signed in itself, which ours are not: rusty-s3 only builds them.
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

pub struct Server {
    pub endpoint: Endpoint,
    exchange: Exchange,
    addressing: Addressing,
}

/// Whose request it is, and where.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    pub credentials: &'a Credentials,
    /// Of the class; else the Secret's, else the driver's.
    pub region: Option<&'a str>,
}

impl<'a> Account<'a> {
    /// Nothing, if it is the driver's.
    pub fn region(self) -> Option<&'a str> {
        self.region.or(self.credentials.region.as_deref())
    }
}

impl Server {
    /// `authorities` replaces the system's.
    pub fn new(
        endpoint: Endpoint,
        addressing: Addressing,
        authorities: Option<&Path>,
        calls: S3Calls,
    ) -> Self {
        Self { endpoint, exchange: Exchange::new(authorities, calls), addressing }
    }

    pub async fn create_bucket(&self, account: Account<'_>, bucket: &str) -> Result<(), Fault> {
        let region = self.region(account);
        // Elsewhere than at Amazon it may name a place instead of a region: only what somebody asked for is sent there.
        let asked = account.region().is_some() || self.endpoint.is_amazon();
        let place = if region == DEFAULT_REGION || !asked {
            String::new()
        } else {
            format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            )
        };
        self.call(account, Operation::CreateBucket, bucket, |at| Asked {
            body: place,
            ..Asked::new(Method::PUT, at.base_url().clone())
        })
        .await
        .map(drop)
    }

    pub async fn delete_bucket(&self, account: Account<'_>, bucket: &str) -> Result<(), Fault> {
        self.call(account, Operation::DeleteBucket, bucket, |at| {
            Asked::new(Method::DELETE, at.base_url().clone())
        })
        .await
        .map(drop)
    }

    /// The first keys below a prefix, or of the whole bucket.
    pub async fn list(
        &self,
        account: Account<'_>,
        bucket: &str,
        prefix: &str,
        most: usize,
    ) -> Result<Vec<String>, Fault> {
        let answer = self
            .call(account, Operation::ListObjects, bucket, |at| {
                let mut list = ListObjectsV2::new(at, None);
                list.with_prefix(prefix);
                list.with_max_keys(most);
                Asked::new(Method::GET, list.sign(UNUSED))
            })
            .await?;
        listing::keys(&answer.page, most)
            .map_err(|error| self.garbled(account, Operation::ListObjects, bucket, &error))
    }

    /// The first unfinished uploads of a bucket.
    pub async fn uploads(
        &self,
        account: Account<'_>,
        bucket: &str,
        most: usize,
    ) -> Result<Vec<Upload>, Fault> {
        let answer = self
            .call(account, Operation::ListUploads, bucket, |at| {
                let mut url = at.base_url().clone();
                url.set_query(Some(&format!("encoding-type=url&max-uploads={most}&uploads=")));
                Asked::new(Method::GET, url)
            })
            .await?;
        listing::uploads(&answer.page, most)
            .map_err(|error| self.garbled(account, Operation::ListUploads, bucket, &error))
    }

    pub async fn abort_upload(
        &self,
        account: Account<'_>,
        bucket: &str,
        upload: &Upload,
    ) -> Result<(), Fault> {
        self.check_key(account, Operation::AbortUpload, bucket, &upload.key)?;
        self.call(account, Operation::AbortUpload, bucket, |at| {
            let abort = AbortMultipartUpload::new(at, None, &upload.key, &upload.id);
            Asked::new(Method::DELETE, abort.sign(UNUSED))
        })
        .await
        .map(drop)
    }

    /// A thousand keys at most.
    pub async fn delete_objects(
        &self,
        account: Account<'_>,
        bucket: &str,
        keys: &[String],
    ) -> Result<(), Fault> {
        let (listed, odd): (Vec<_>, Vec<_>) = keys.iter().partition(|key| xml_carries(key));
        for key in odd {
            self.check_key(account, Operation::DeleteObjects, bucket, key)?;
            self.call(account, Operation::DeleteObjects, bucket, |at| {
                Asked::new(Method::DELETE, at.object_url(key))
            })
            .await?;
        }
        // An empty list would be refused.
        if listed.is_empty() {
            return Ok(());
        }
        let objects: Vec<ObjectIdentifier> = listed.into_iter().cloned().map(ObjectIdentifier::new).collect();
        let answer = self
            .call(account, Operation::DeleteObjects, bucket, |at| {
                let mut delete = DeleteObjects::new(at, None, objects.iter());
                delete.set_quiet(true);
                let url = delete.sign(UNUSED);
                let (body, md5) = delete.body_with_md5();
                Asked { method: Method::POST, url, body, headers: vec![("content-md5", md5)] }
            })
            .await?;
        // The answer to the whole may be OK while single objects are not.
        let call = self.described(account, Operation::DeleteObjects, bucket);
        Fault::of_object(&call, &answer.page).map_or(Ok(()), Err)
    }

    /// A URL would name another object, perhaps outside of the prefix.
    fn check_key(
        &self,
        account: Account<'_>,
        operation: Operation,
        bucket: &str,
        key: &str,
    ) -> Result<(), Fault> {
        if !key.is_empty() && !key.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Ok(());
        }
        let call = self.described(account, operation, bucket);
        Err(Fault::new(Kind::Refused, &call, format!("no URL can name the object {key:?}")))
    }

    fn garbled(
        &self,
        account: Account<'_>,
        operation: Operation,
        bucket: &str,
        error: &ListingError,
    ) -> Fault {
        Fault::new(Kind::Garbled, &self.described(account, operation, bucket), error.to_string())
    }

    fn region<'a>(&'a self, account: Account<'a>) -> &'a str {
        account.region().unwrap_or(self.endpoint.home())
    }

    fn described<'a>(&'a self, account: Account<'a>, operation: Operation, bucket: &'a str) -> Call<'a> {
        let endpoint = self.endpoint.address(account.region());
        Call { operation, bucket, endpoint, region: self.region(account) }
    }

    async fn call(
        &self,
        account: Account<'_>,
        operation: Operation,
        bucket: &str,
        ask: impl FnOnce(&Bucket) -> Asked,
    ) -> Result<Answer<'_>, Fault> {
        let call = self.described(account, operation, bucket);
        let style = match self.addressing {
            Addressing::Path => UrlStyle::Path,
            Addressing::Virtual => UrlStyle::VirtualHost,
        };
        let url = self.endpoint.url(call.region).ok_or_else(|| {
            Fault::new(Kind::WrongRegion, &call, "it is not the name of a region".to_owned())
        })?;
        let at = Bucket::new(url, style, bucket.to_owned(), call.region.to_owned())
            .map_err(|error| Fault::new(Kind::BadName, &call, error.to_string()))?;
        self.exchange.ask(&call, account.credentials, || ask(&at)).await
    }
}

/// Whether a list of keys in XML can name it: it cannot carry most control characters, and reads a carriage return as a line
/// feed, which would be another object.
fn xml_carries(key: &str) -> bool {
    !key.contains(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}
