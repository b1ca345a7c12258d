//! The only caller of the S3 server: one signed request, one answer or a [`Fault`], no retries underneath.

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use jiff::Timestamp;
use rusty_s3::actions::{DeleteObjects, ListObjectsV2, ObjectIdentifier, S3Action as _};
use rusty_s3::{Bucket, UrlStyle};
use url::Url;

use super::connection::Connections;
use super::credentials::Credentials;
use super::endpoint::{DEFAULT_REGION, Endpoint};
use super::fault::{Call, Fault, Operation};
use super::kind::Kind;
use super::signing::{Unsigned, sign};
use crate::metrics::S3Calls;

/// csi-provisioner gives up after 10 s: the answer must be there before, so that it hears what is wrong.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// The largest answer is a list of a thousand keys, of a kilobyte each.
const LARGEST_ANSWER_BYTES: usize = 8 << 20;
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
    connections: Connections,
    addressing: Addressing,
    calls: S3Calls,
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
        Self { endpoint, connections: Connections::new(authorities), addressing, calls }
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
        let page = self
            .call(account, Operation::ListObjects, bucket, |at| {
                let mut list = ListObjectsV2::new(at, None);
                list.with_prefix(prefix);
                list.with_max_keys(most);
                Asked::new(Method::GET, list.sign(UNUSED))
            })
            .await?;
        let parsed = ListObjectsV2::parse_response(&page).map_err(|error| {
            let call = self.described(account, Operation::ListObjects, bucket);
            Fault::new(Kind::Refused, &call, format!("its list cannot be read: {error}"))
        })?;
        Ok(parsed.contents.into_iter().map(|object| object.key).collect())
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
            if key.split('/').any(|segment| matches!(segment, "." | "..")) {
                // A URL would name another object, perhaps outside of the prefix.
                let call = self.described(account, Operation::DeleteObjects, bucket);
                return Err(Fault::new(Kind::Refused, &call, format!("no URL can name the object {key:?}")));
            }
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
        let page = self
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
        Fault::of_object(&call, &page).map_or(Ok(()), Err)
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
    ) -> Result<String, Fault> {
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
        let send = self.send(&call, ask(&at), account.credentials);
        let outcome = match tokio::time::timeout(ANSWER_WITHIN, send).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::new(Kind::Late, &call, format!("within {} s", ANSWER_WITHIN.as_secs()))),
        };
        self.calls.count(operation, &outcome);
        outcome
    }

    async fn send(
        &self,
        call: &Call<'_>,
        asked: Asked,
        credentials: &Credentials,
    ) -> Result<String, Fault> {
        let Asked { method, url, body, headers } = asked;
        let unsigned =
            Unsigned { method: &method, url: &url, payload: body.as_bytes(), headers: &headers };
        let headers = sign(&unsigned, &credentials.keys, call.region, Timestamp::now());
        let mut request = Request::builder().method(method).uri(url.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Cursor::new(body.into_bytes())))
            .map_err(|error| Fault::new(Kind::BadName, call, error.to_string()))?;
        let answer = self.connections.client().request(request).await;
        let answer = answer.map_err(|error| Fault::of_connection(call, error.is_connect(), &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| Fault::of_connection(call, false, &*error))?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(body) } else { Err(Fault::of_answer(call, status.as_u16(), &body)) }
    }
}

/// Whether a list of keys in XML can name it: it cannot carry most control characters, and reads a carriage return as a line
/// feed, which would be another object.
fn xml_carries(key: &str) -> bool {
    !key.contains(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

struct Asked {
    method: Method,
    url: Url,
    body: String,
    /// Beside those of every request.
    headers: Vec<(&'static str, String)>,
}

impl Asked {
    fn new(method: Method, url: Url) -> Self {
        Self { method, url, body: String::new(), headers: Vec::new() }
    }
}
