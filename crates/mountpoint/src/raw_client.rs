//! Requests that the library's client does not know, sent with the parts that the library's client is made of.

mod failure;
mod sending;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use contract::keys::Keys;
use mountpoint_s3_client::config::{Allocator, EndpointConfig, S3ClientAuthConfig, Uri};
use mountpoint_s3_crt::auth::credentials::{
    CredentialsProvider, CredentialsProviderChainDefaultOptions, CredentialsProviderProfileOptions,
};
use mountpoint_s3_crt::http::request_response::{Header, Message};
use mountpoint_s3_crt::io::channel_bootstrap::{ClientBootstrap, ClientBootstrapOptions};
use mountpoint_s3_crt::io::event_loop::EventLoopGroup;
use mountpoint_s3_crt::io::host_resolver::{HostResolver, HostResolverDefaultOptions};
use mountpoint_s3_crt::io::tls::{TlsConnectionOptions, TlsContext, TlsContextOptions};
use mountpoint_s3_crt::s3::client::{
    Client, ClientConfig, MetaRequestOptions, MetaRequestType, init_signing_config,
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::credentials::Source;
use crate::multipart::Watch;
use crate::server_timeout::ServerTimeout;
use crate::telemetry::Telemetry;

pub(crate) use failure::RawError;
pub(crate) use sending::{Response, Sending};

/// Of host names that are resolved: there is one.
const HOSTS: usize = 1;
/// The unreserved characters of RFC 3986, and slashes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A key or a query's value as it stands in a request. The S3 client does not escape it.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// With which the path of an object begins at this endpoint.
fn prefix(endpoint: &Uri) -> String {
    format!("{}/", endpoint.path().to_string_lossy().trim_end_matches('/'))
}

/// Where requests go, and what all of them have in common.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) endpoint: EndpointConfig,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) network_interfaces: Vec<String>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) event_loops: EventLoopGroup,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The client for the newest keys. Most mounts need none.
#[derive(Debug)]
pub(crate) struct RawClients {
    bucket: Arc<Bucket>,
    made: Mutex<Option<(Option<Keys>, Arc<RawClient>)>>,
    /// With which the paths of all objects begin.
    prefix: OnceLock<Option<String>>,
}

impl RawClients {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self { bucket: Arc::new(bucket), made: Mutex::default(), prefix: OnceLock::new() }
    }

    /// Looks out for an upload to this object.
    pub(crate) fn watch(&self, key: &str) -> Option<Watch> {
        let Bucket { name, endpoint, telemetry, .. } = &*self.bucket;
        let resolve = || Some(prefix(&endpoint.resolve_for_bucket(name).ok()?.uri().ok()?));
        let prefix = self.prefix.get_or_init(resolve).as_ref()?;
        Some(Watch::new(Arc::clone(&telemetry.unfinished_uploads), format!("{prefix}{}", escaped(key))))
    }

    pub(crate) fn server_timeout(&self) -> Arc<ServerTimeout> {
        Arc::clone(&self.bucket.telemetry.server_timeout)
    }

    pub(crate) fn get(&self, source: &Source, keys: Option<Keys>) -> Result<Arc<RawClient>, RawError> {
        let mut made = self.made.lock();
        if let Some((with, client)) = &*made
            && *with == keys
        {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(RawClient::new(&self.bucket, source, keys.as_ref())?);
        *made = Some((keys, Arc::clone(&client)));
        Ok(client)
    }
}

#[derive(Debug)]
pub(crate) struct RawClient {
    pub(crate) bucket: Arc<Bucket>,
    endpoint: Uri,
    client: Client,
}

pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    /// As S3 calls it. By that the client knows which answers of status 200 may be errors.
    pub(crate) operation: &'static str,
    /// With the query, escaped.
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'a str, String)>,
    pub(crate) body: Vec<u8>,
}

/// The operation that aborts a multipart upload.
pub(crate) const ABORT: &str = "AbortMultipartUpload";

pub(crate) fn bodyless(method: &'static str, operation: &'static str, path: String) -> Request<'static> {
    Request { method, operation, path, headers: Vec::new(), body: Vec::new() }
}

impl RawClient {
    fn new(bucket: &Arc<Bucket>, source: &Source, keys: Option<&Keys>) -> Result<Self, RawError> {
        let allocator = &Allocator::default();
        let mut event_loops = bucket.event_loops.clone();
        let event_loop_group = &mut event_loops;
        let options = HostResolverDefaultOptions { max_entries: HOSTS, event_loop_group };
        let mut host_resolver = HostResolver::new_default(allocator, &options)?;
        let event_loop_group = &mut event_loops;
        let options = ClientBootstrapOptions { event_loop_group, host_resolver: &mut host_resolver };
        let mut bootstrap = ClientBootstrap::new(allocator, &options)?;
        let tls = bucket.tls(allocator)?;
        let tls_ctx = tls.as_ref();
        let provider = match source.auth(keys)? {
            S3ClientAuthConfig::NoSigning => CredentialsProvider::new_anonymous(allocator)?,
            S3ClientAuthConfig::Provider(provider) => provider,
            S3ClientAuthConfig::Default => {
                let options = CredentialsProviderChainDefaultOptions { bootstrap: &mut bootstrap, tls_ctx };
                CredentialsProvider::new_chain_default(allocator, options)?
            }
            S3ClientAuthConfig::Profile(name) => {
                let options = CredentialsProviderProfileOptions {
                    bootstrap: &mut bootstrap,
                    profile_name_override: &name,
                    tls_ctx,
                };
                CredentialsProvider::new_profile(allocator, options)?
            }
        };
        let cannot_resolve = |error: &dyn std::fmt::Display| RawError::Endpoint(error.to_string());
        let endpoint =
            bucket.endpoint.resolve_for_bucket(&bucket.name).map_err(|error| cannot_resolve(&error))?;
        let scheme = endpoint.auth_scheme().map_err(|error| cannot_resolve(&error))?;
        let signing = init_signing_config(
            scheme.signing_region(),
            provider,
            Some(scheme.scheme_name()),
            Some(scheme.signing_name()),
            Some(!scheme.disable_double_encoding()),
        );
        let mut config = ClientConfig::new();
        config.region(bucket.endpoint.get_region()).client_bootstrap(bootstrap).signing_config(signing);
        // Directory buckets have keys of their own.
        config.express_support(true);
        if let Some(tls) = &tls {
            config.tls_connection_options(TlsConnectionOptions::new(tls));
        }
        if !bucket.network_interfaces.is_empty() {
            config.network_interface_names(bucket.network_interfaces.clone());
        }
        let client = Client::new(allocator, config)?;
        let endpoint = endpoint.uri().map_err(|error| cannot_resolve(&error))?;
        Ok(Self { bucket: Arc::clone(bucket), endpoint, client })
    }

    /// The path of an object.
    pub(crate) fn path(&self, key: &str) -> String {
        format!("{}{}", prefix(&self.endpoint), escaped(key))
    }

    /// What cannot be aborted now, the next mount process aborts.
    pub(crate) fn abort(&self, upload: &str) {
        match self.send(bodyless("DELETE", ABORT, upload.to_owned())) {
            Ok(sending) => sending.detach(),
            Err(error) => tracing::warn!(%error, "cannot abort an upload"),
        }
    }

    /// Begins at once, also if the result is never awaited.
    pub(crate) fn send(&self, request: Request<'_>) -> Result<Sending, RawError> {
        let mut message = Message::new_request(&Allocator::default())?;
        message.set_request_method(request.method)?;
        message.set_request_path(&request.path)?;
        message.add_header(&Header::new("Host", self.endpoint.authority()))?;
        message.add_header(&Header::new("Content-Length", request.body.len().to_string()))?;
        for (name, value) in self.bucket.headers.iter().chain(&request.headers) {
            message.add_header(&Header::new(*name, value))?;
        }
        let mut options = MetaRequestOptions::new();
        options
            .request_type(MetaRequestType::Default)
            .operation_name(request.operation)
            .message(message)
            .endpoint(self.endpoint.clone());
        if !request.body.is_empty() {
            options.request_body(request.body);
        }
        Ok(Sending::begin(&self.client, options, Arc::clone(&self.bucket.telemetry))?)
    }
}

impl Bucket {
    fn tls(&self, allocator: &Allocator) -> Result<Option<TlsContext>, RawError> {
        let Some(bundle) = &self.ca_bundle else { return Ok(None) };
        let mut options = TlsContextOptions::new_default_client(allocator);
        options
            .override_default_trust_store_from_path(None, Some(bundle))
            .map_err(|error| RawError::CaBundle(error.to_string()))?;
        Ok(Some(TlsContext::new(allocator, &options)?))
    }
}
