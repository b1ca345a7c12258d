//! Aborts the multipart uploads that a mount process has left on the server. The library's client cannot, so this sends the
//! request with the parts that the library's client is made of.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use mountpoint_s3_client::config::{Allocator, EndpointConfig, S3ClientAuthConfig, Uri};
use mountpoint_s3_crt::auth::credentials::{
    CredentialsProvider, CredentialsProviderChainDefaultOptions, CredentialsProviderProfileOptions,
};
use mountpoint_s3_crt::common::error::Error as CrtError;
use mountpoint_s3_crt::http::request_response::{Header, Message};
use mountpoint_s3_crt::io::channel_bootstrap::{ClientBootstrap, ClientBootstrapOptions};
use mountpoint_s3_crt::io::event_loop::EventLoopGroup;
use mountpoint_s3_crt::io::host_resolver::{HostResolver, HostResolverDefaultOptions};
use mountpoint_s3_crt::io::tls::{TlsConnectionOptions, TlsContext, TlsContextOptions};
use mountpoint_s3_crt::s3::client::{
    Client, ClientConfig, MetaRequestOptions, MetaRequestResult, MetaRequestType, init_signing_config,
};
use thiserror::Error;

use crate::credentials::{KeysError, Source};
use crate::journal::{Journal, Record};

/// Programs are waiting until this process serves, which needs the processor first.
const BEGIN_AFTER: Duration = Duration::from_secs(1);
/// For one request with the client's own retries. No program waits for it.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);
/// Of host names that are resolved: there is one.
const HOSTS: usize = 1;
const NOT_FOUND: i32 = 404;

#[derive(Debug, Error)]
pub(crate) enum AbortError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("cannot resolve the endpoint: {0}")]
    Endpoint(String),
    #[error("cannot read the CA bundle: {0}")]
    CaBundle(String),
    #[error("cannot send the request: {0}")]
    Send(#[from] CrtError),
    #[error("the S3 server answered with status {0}")]
    Refused(i32),
    #[error("no answer from the S3 server within {} s", ANSWER_WITHIN.as_secs())]
    TimedOut,
}

impl AbortError {
    fn endpoint(error: impl std::fmt::Display) -> Self {
        Self::Endpoint(error.to_string())
    }
}

/// How to reach the bucket's server.
#[derive(Debug)]
pub(crate) struct Aborting {
    pub(crate) bucket: String,
    pub(crate) endpoint: EndpointConfig,
    pub(crate) source: Source,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) network_interfaces: Vec<String>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) event_loops: EventLoopGroup,
}

impl Aborting {
    /// On a thread of its own: the server may be slow, and programs do not wait for it. What fails is tried again by the next
    /// mount process.
    pub(crate) fn begin(mut self, uploads: BTreeSet<String>, journal: Arc<Journal>) -> io::Result<()> {
        let abort_all = move || {
            thread::sleep(BEGIN_AFTER);
            for upload in uploads {
                match self.abort(&upload) {
                    Ok(()) => {
                        tracing::info!(upload, "aborted the upload of a mount process that died");
                        journal.record(&Record::UploadEnded(upload));
                    }
                    Err(error) => tracing::warn!(%error, upload, "cannot abort an unfinished upload"),
                }
            }
        };
        thread::Builder::new().name("abort-uploads".to_owned()).spawn(abort_all).map(drop)
    }

    fn abort(&mut self, upload: &str) -> Result<(), AbortError> {
        let allocator = Allocator::default();
        let (client, endpoint) = self.client(&allocator)?;
        let (sender, results) = mpsc::channel();
        let request = self.request(&allocator, endpoint, upload, sender)?;
        let _request = client.make_meta_request(request)?;
        match results.recv_timeout(ANSWER_WITHIN) {
            Ok(result) if !result.is_err() || result.response_status == NOT_FOUND => Ok(()),
            Ok(result) if result.response_status > 0 => Err(AbortError::Refused(result.response_status)),
            Ok(result) => Err(result.crt_error.into()),
            Err(_) => Err(AbortError::TimedOut),
        }
    }

    /// With the newest keys, and where its requests go.
    fn client(&mut self, allocator: &Allocator) -> Result<(Client, Uri), AbortError> {
        let event_loop_group = &mut self.event_loops;
        let options = HostResolverDefaultOptions { max_entries: HOSTS, event_loop_group };
        let mut host_resolver = HostResolver::new_default(allocator, &options)?;
        let event_loop_group = &mut self.event_loops;
        let options = ClientBootstrapOptions { event_loop_group, host_resolver: &mut host_resolver };
        let mut bootstrap = ClientBootstrap::new(allocator, &options)?;
        let tls = self.tls(allocator)?;
        let auth = self.source.auth(self.source.keys()?.as_ref())?;
        let tls_ctx = tls.as_ref();
        let provider = match auth {
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
        let endpoint = self.endpoint.resolve_for_bucket(&self.bucket).map_err(AbortError::endpoint)?;
        let scheme = endpoint.auth_scheme().map_err(AbortError::endpoint)?;
        let signing = init_signing_config(
            scheme.signing_region(),
            provider,
            Some(scheme.scheme_name()),
            Some(scheme.signing_name()),
            Some(!scheme.disable_double_encoding()),
        );
        let mut config = ClientConfig::new();
        config.region(self.endpoint.get_region()).client_bootstrap(bootstrap).signing_config(signing);
        // Directory buckets have keys of their own.
        config.express_support(true);
        if let Some(tls) = &tls {
            config.tls_connection_options(TlsConnectionOptions::new(tls));
        }
        if !self.network_interfaces.is_empty() {
            config.network_interface_names(self.network_interfaces.clone());
        }
        Ok((Client::new(allocator, config)?, endpoint.uri().map_err(AbortError::endpoint)?))
    }

    fn tls(&self, allocator: &Allocator) -> Result<Option<TlsContext>, AbortError> {
        let Some(bundle) = &self.ca_bundle else { return Ok(None) };
        let mut options = TlsContextOptions::new_default_client(allocator);
        options
            .override_default_trust_store_from_path(None, Some(bundle))
            .map_err(|error| AbortError::CaBundle(error.to_string()))?;
        Ok(Some(TlsContext::new(allocator, &options)?))
    }

    fn request(
        &self,
        allocator: &Allocator,
        endpoint: Uri,
        upload: &str,
        results: mpsc::Sender<MetaRequestResult>,
    ) -> Result<MetaRequestOptions, AbortError> {
        let mut message = Message::new_request(allocator)?;
        message.set_request_method("DELETE")?;
        message.set_request_path(upload)?;
        message.add_header(&Header::new("Host", endpoint.authority()))?;
        for (name, value) in &self.headers {
            message.add_header(&Header::new(*name, value))?;
        }
        let mut request = MetaRequestOptions::new();
        request
            .request_type(MetaRequestType::Default)
            .operation_name("AbortMultipartUpload")
            .message(message)
            .endpoint(endpoint)
            .on_finish(move |result| {
                // There is no longer a receiver once the time is over.
                let _ = results.send(result);
            });
        Ok(request)
    }
}
