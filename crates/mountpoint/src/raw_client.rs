//! Requests that the library's client does not know, sent with the parts that the library's client is made of.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use contract::keys::Keys;
use futures::FutureExt as _;
use futures::channel::oneshot;
use mountpoint_s3_client::OnTelemetry as _;
use mountpoint_s3_client::config::{Allocator, EndpointConfig, S3ClientAuthConfig, Uri};
use mountpoint_s3_crt::auth::credentials::{
    CredentialsProvider, CredentialsProviderChainDefaultOptions, CredentialsProviderProfileOptions,
};
use mountpoint_s3_crt::common::error::Error as CrtError;
use mountpoint_s3_crt::http::request_response::{Header, Headers, Message};
use mountpoint_s3_crt::io::channel_bootstrap::{ClientBootstrap, ClientBootstrapOptions};
use mountpoint_s3_crt::io::event_loop::EventLoopGroup;
use mountpoint_s3_crt::io::host_resolver::{HostResolver, HostResolverDefaultOptions};
use mountpoint_s3_crt::io::tls::{TlsConnectionOptions, TlsContext, TlsContextOptions};
use mountpoint_s3_crt::s3::client::{
    Client, ClientConfig, MetaRequest, MetaRequestOptions, MetaRequestResult, MetaRequestType,
    init_signing_config,
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;

use crate::credentials::{KeysError, Source};
use crate::server_timeout::ServerTimeout;
use crate::telemetry::Telemetry;

/// Of host names that are resolved: there is one.
const HOSTS: usize = 1;
/// Bytes of a response that are kept: more than any answer to these requests has.
const MOST_BODY: usize = 64 * 1024;
/// The unreserved characters of RFC 3986, and slashes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A key or a query's value as it stands in a request. The S3 client does not escape it.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[derive(Debug, Error)]
pub(crate) enum RawError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("cannot resolve the endpoint: {0}")]
    Endpoint(String),
    #[error("cannot read the CA bundle: {0}")]
    CaBundle(String),
    #[error("cannot send the request: {0}")]
    Send(#[from] CrtError),
    #[error("the S3 server answered with status {status}: {body}")]
    Refused { status: i32, body: String },
    #[error("the S3 client dropped the request")]
    Dropped,
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
}

impl RawClients {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self { bucket: Arc::new(bucket), made: Mutex::default() }
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

pub(crate) struct Request {
    pub(crate) method: &'static str,
    /// As S3 calls it. By that the client knows which answers of status 200 may be errors.
    pub(crate) operation: &'static str,
    /// With the query, escaped.
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

/// The operation that aborts a multipart upload.
pub(crate) const ABORT: &str = "AbortMultipartUpload";

pub(crate) fn bodyless(method: &'static str, operation: &'static str, path: String) -> Request {
    Request { method, operation, path, headers: Vec::new(), body: Vec::new() }
}

pub(crate) struct Response {
    pub(crate) headers: Headers,
    pub(crate) body: String,
}

#[derive(Debug, Default)]
struct Received {
    headers: Option<Headers>,
    body: Vec<u8>,
}

/// A request that is under way. Dropped, it is cancelled.
#[derive(Debug)]
pub(crate) struct Sending {
    /// `None` if it goes on without this.
    request: Option<MetaRequest>,
    received: Arc<Mutex<Received>>,
    result: oneshot::Receiver<MetaRequestResult>,
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
        let prefix = self.endpoint.path().to_string_lossy();
        format!("{}/{}", prefix.trim_end_matches('/'), escaped(key))
    }

    /// Begins at once, also if the result is never awaited.
    pub(crate) fn send(&self, request: Request) -> Result<Sending, RawError> {
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
        let received = Arc::<Mutex<Received>>::default();
        let (of_headers, of_body) = (Arc::clone(&received), Arc::clone(&received));
        let telemetry = Arc::clone(&self.bucket.telemetry);
        let (sender, result) = oneshot::channel();
        options
            .on_telemetry(move |attempt| telemetry.on_telemetry(attempt))
            .on_headers(move |headers, _| of_headers.lock().headers = Some(headers.clone()))
            .on_body(move |_, part| {
                let body = &mut of_body.lock().body;
                body.extend_from_slice(&part[..part.len().min(MOST_BODY.saturating_sub(body.len()))]);
            })
            .on_finish(move |result| {
                // There is no longer a receiver if the request was cancelled.
                let _ = sender.send(result);
            });
        let request = Some(self.client.make_meta_request(options)?);
        Ok(Sending { request, received, result })
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

impl Future for Sending {
    type Output = Result<Response, RawError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(result) = self.result.poll_unpin(context) else { return Poll::Pending };
        let result = result.map_err(|_| RawError::Dropped)?;
        if !result.is_err() {
            let Received { headers, body } = std::mem::take(&mut *self.received.lock());
            let body = String::from_utf8_lossy(&body).into_owned();
            return Poll::Ready(headers.map(|headers| Response { headers, body }).ok_or(RawError::Dropped));
        }
        let body = result.error_response_body.unwrap_or_default().to_string_lossy().into_owned();
        Poll::Ready(Err(match result.response_status {
            0 => result.crt_error.into(),
            status => RawError::Refused { status, body },
        }))
    }
}

impl Sending {
    /// It goes on, and its result does not matter.
    pub(crate) fn detach(mut self) {
        self.request = None;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.cancel();
        }
    }
}
