//! A small S3 client that uses presigned URLs.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;

use rusty_s3::signing::sign;
use rusty_s3::{Bucket, Method, UrlStyle};
use ureq::Agent;
use ureq::http::Request;
use ureq::http::request::Builder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use url::Url;

use super::{Account, REGION};

/// For one request, including the transfer of a large object.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
const SIGNATURE_LASTS_SECONDS: u64 = 300;

/// The server responds with 500 to a list of buckets while one of them is being deleted.
const LIST_TRIES: usize = 10;

/// An error response of the server.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    pub code: String,
    pub message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "the S3 server answered {} {}: {}", self.status, self.code, self.message)
    }
}

impl std::error::Error for Refused {}

pub struct Client {
    agent: Agent,
    endpoint: Url,
    access_key: String,
    secret_key: String,
}

impl Client {
    pub fn new(endpoint: &str, account: Account) -> Result<Self> {
        Self::with_keys(endpoint, account.access_key, account.secret_key, None)
    }

    /// `authority` is the file of the certificate that signed the server's.
    pub fn with_keys(
        endpoint: &str,
        access_key: &str,
        secret_key: &str,
        authority: Option<&Path>,
    ) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = authority {
            let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            tls = tls.root_certs(RootCerts::new_with_certs(&[Certificate::from_pem(&pem)?]));
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false);
        Ok(Self {
            agent: config.build().into(),
            endpoint: endpoint.parse().with_context(|| format!("`{endpoint}` is not a URL"))?,
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        })
    }

    pub fn buckets(&self) -> Result<Vec<String>> {
        let mut tries = LIST_TRIES;
        loop {
            tries -= 1;
            match self.send(Method::Get, &[], &[], &[]) {
                Err(error) if tries > 0 && stumbled(&error) => {}
                page => return Ok(elements(&text(page?)?, "Name")),
            }
        }
    }

    pub fn create_bucket(&self, bucket: &str) -> Result<()> {
        self.send(Method::Put, &[bucket], &[], &[]).map(drop)
    }

    pub fn delete_bucket(&self, bucket: &str) -> Result<()> {
        self.send(Method::Delete, &[bucket], &[], &[]).map(drop)
    }

    /// Sets the bucket policy.
    pub fn put_policy(&self, bucket: &str, policy: &str) -> Result<()> {
        self.send(Method::Put, &[bucket], &[("policy", "")], policy.as_bytes()).map(drop)
    }

    /// Begins a multipart upload of an object with a content type.
    pub fn begin_upload(&self, bucket: &str, key: &str, kind: &str) -> Result<String> {
        let request = self.request(Method::Post, &[bucket, key], &[("uploads", "")])?;
        let begun = text(self.exchange(request.header("content-type", kind), &[])?)?;
        elements(&begun, "UploadId").pop().context("the S3 server has not named the upload")
    }

    /// Returns the part's `ETag`.
    pub fn upload_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u64,
        part: &[u8],
    ) -> Result<String> {
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload)];
        let answer = self.agent.run(self.request(Method::Put, &[bucket, key], &query)?.body(part)?)?;
        let etag = answer.headers().get("etag").and_then(|etag| etag.to_str().ok());
        Ok(etag.with_context(|| format!("the S3 server answered {} to a part", answer.status()))?.to_owned())
    }

    /// With the `ETag`s of all its parts.
    pub fn complete_upload(&self, bucket: &str, key: &str, upload: &str, parts: &[String]) -> Result<()> {
        let part = |(number, etag): (usize, &String)| {
            format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", number + 1)
        };
        let parts: String = parts.iter().enumerate().map(part).collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        self.send(Method::Post, &[bucket, key], &[("uploadId", upload)], body.as_bytes()).map(drop)
    }

    /// Multipart uploads that were neither completed nor aborted.
    pub fn unfinished_uploads(&self, bucket: &str) -> Result<Vec<String>> {
        Ok(elements(&text(self.send(Method::Get, &[bucket], &[("uploads", "")], &[])?)?, "UploadId"))
    }

    /// All keys that begin with `prefix`.
    pub fn objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut token = None;
        loop {
            // Sorted by name, because the signature covers the sorted query.
            let mut query = Vec::from_iter(token.as_deref().map(|token| ("continuation-token", token)));
            query.extend([("list-type", "2"), ("prefix", prefix)]);
            let page = text(self.send(Method::Get, &[bucket], &query, &[])?)?;
            keys.extend(elements(&page, "Key"));
            token = elements(&page, "NextContinuationToken").pop();
            if token.is_none() {
                return Ok(keys);
            }
        }
    }

    pub fn put(&self, bucket: &str, key: &str, content: &[u8]) -> Result<()> {
        self.send(Method::Put, &[bucket, key], &[], content).map(drop)
    }

    /// Stores an object with a content type.
    pub fn put_as(&self, bucket: &str, key: &str, kind: &str, content: &[u8]) -> Result<()> {
        let request = self.request(Method::Put, &[bucket, key], &[])?.header("content-type", kind);
        self.exchange(request, content).map(drop)
    }

    pub fn get(&self, bucket: &str, key: &str) -> Result<Vec<u8>> {
        self.send(Method::Get, &[bucket, key], &[], &[])
    }

    /// What the server says of an object under this name.
    pub fn header(&self, bucket: &str, key: &str, name: &str) -> Result<Option<String>> {
        let answer = self.agent.run(self.request(Method::Head, &[bucket, key], &[])?.body(())?)?;
        anyhow::ensure!(answer.status() == 200, "the S3 server answered {}", answer.status());
        Ok(answer.headers().get(name).map(|value| value.to_str().map(str::to_owned)).transpose()?)
    }

    /// A stream of a range of an object.
    pub fn stream(&self, bucket: &str, key: &str, bytes: std::ops::Range<u64>) -> Result<impl Read + use<>> {
        let request = self.request(Method::Get, &[bucket, key], &[])?;
        let request = request.header("range", format!("bytes={}-{}", bytes.start, bytes.end - 1));
        let answer = self.agent.run(request.body(())?)?;
        anyhow::ensure!(answer.status() == 206, "the S3 server answered {}", answer.status());
        Ok(answer.into_body().into_reader())
    }

    pub fn delete(&self, bucket: &str, key: &str) -> Result<()> {
        self.send(Method::Delete, &[bucket, key], &[], &[]).map(drop)
    }

    /// `path` is empty, a bucket, or a bucket and a key.
    fn send(&self, method: Method, path: &[&str], query: &[(&str, &str)], body: &[u8]) -> Result<Vec<u8>> {
        self.exchange(self.request(method, path, query)?, body)
    }

    fn exchange(&self, request: Builder, body: &[u8]) -> Result<Vec<u8>> {
        let mut answer =
            self.agent.run(request.body(body)?).with_context(|| format!("cannot reach {}", self.endpoint))?;
        let content = answer.body_mut().with_config().limit(u64::MAX).read_to_vec()?;
        if answer.status().is_success() {
            return Ok(content);
        }
        let page = String::from_utf8_lossy(&content);
        let first = |name| elements(&page, name).into_iter().next().unwrap_or_default();
        Err(Refused { status: answer.status().as_u16(), code: first("Code"), message: first("Message") }
            .into())
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<Builder> {
        let bucket = |name: &str| Bucket::new(self.endpoint.clone(), UrlStyle::Path, name.to_owned(), REGION);
        let url = match path {
            [] => self.endpoint.clone(),
            [name] => bucket(name)?.base_url().clone(),
            [name, key @ ..] => bucket(name)?.object_url(&key.join("/")),
        };
        let signed = sign(
            &Timestamp::now(),
            method,
            url,
            &self.access_key,
            &self.secret_key,
            None,
            REGION,
            SIGNATURE_LASTS_SECONDS,
            query.iter().copied(),
            std::iter::empty::<(&str, &str)>(),
        );
        Ok(Request::builder().method(method.to_str()).uri(signed.as_str()))
    }
}

fn stumbled(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 500)
}

fn text(content: Vec<u8>) -> Result<String> {
    String::from_utf8(content).context("the S3 server's response is not valid UTF-8")
}

/// The contents of every `<name>` of a response. S3's responses have neither attributes nor nesting where this is used.
fn elements(page: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    page.split(&open)
        .skip(1)
        .filter_map(|rest| rest.split_once(&close))
        .map(|(content, _)| {
            content
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&apos;", "'")
                .replace("&#34;", "\"")
                .replace("&#39;", "'")
                .replace("&amp;", "&")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_and_unescaped() {
        let page = "<R><C><Key>a</Key></C><C><Key>b &amp;lt; c</Key></C><Keys>no</Keys></R>";
        assert_eq!(elements(page, "Key"), ["a", "b &lt; c"]);
        assert_eq!(elements(page, "Code"), [""; 0]);
    }
}
