//! Pooled connections to the S3 server, verified with the current CA bundle.

use std::error::Error;
use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::certificate::WatchedConnector;
use super::proxy::{Connector, ProxyFlags};
use crate::provision::metrics::CertificateExpiry;

/// A server that is there answers within a round trip.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Shorter than what servers and proxies keep idle connections for: one that ends just as it is used costs a retry.
const IDLE_FOR: Duration = Duration::from_secs(4);
const IDLE_CONNECTIONS: usize = 16;

pub(super) type HttpClient = Client<WatchedConnector, Full<Cursor<Vec<u8>>>>;

pub(super) struct Connections {
    ca_bundle: Option<PathBuf>,
    proxy: ProxyFlags,
    expiry: CertificateExpiry,
    /// With the modification time of the CA bundle.
    client: Mutex<(Option<SystemTime>, HttpClient)>,
}

impl Connections {
    /// `ca_bundle` is a file that replaces the system's CAs.
    pub(super) fn new(ca_bundle: Option<&Path>, proxy: &ProxyFlags, expiry: CertificateExpiry) -> Self {
        let changed = ca_bundle.and_then(changed);
        let client = Mutex::new((changed, client(ca_bundle, proxy, &expiry)));
        Self { ca_bundle: ca_bundle.map(Path::to_owned), proxy: proxy.clone(), expiry, client }
    }

    /// Reloads the CA bundle if its `ConfigMap` was created or changed.
    pub(super) fn client(&self) -> HttpClient {
        let now = self.ca_bundle.as_deref().and_then(changed);
        let mut known = self.client.lock();
        if known.0 != now {
            *known = (now, client(self.ca_bundle.as_deref(), &self.proxy, &self.expiry));
        }
        known.1.clone()
    }
}

fn changed(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|file| file.modified()).ok()
}

fn client(ca_bundle: Option<&Path>, proxy: &ProxyFlags, expiry: &CertificateExpiry) -> HttpClient {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_WITHIN));
    let tls = HttpsConnectorBuilder::new().with_tls_config(trusting(ca_bundle));
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_FOR);
    client.pool_max_idle_per_host(IDLE_CONNECTIONS);
    let connector = tls.https_or_http().enable_http1().wrap_connector(Connector::new(connector, proxy));
    client.build(WatchedConnector::new(connector, expiry.clone()))
}

/// A CA bundle that cannot be read fails TLS connections only: plain HTTP needs none.
fn trusting(ca_bundle: Option<&Path>) -> ClientConfig {
    let builder = ClientConfig::builder();
    let Some(path) = ca_bundle else {
        return match builder.clone().with_native_roots() {
            Ok(builder) => builder.with_no_client_auth(),
            Err(error) => {
                tracing::warn!(%error, "system has no CA certificates; all TLS connections will fail");
                builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
            }
        };
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).into_iter().flatten();
    let (added, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if added == 0 {
        tracing::warn!(path = %path.display(), "CA bundle contains no certificates; all TLS connections will fail");
    }
    builder.with_root_certificates(roots).with_no_client_auth()
}

/// Whether it comes from the handshake. The error inside an I/O error is not its source, and there may be several of them
/// around it.
pub(super) fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return is_tls_error(inner);
    }
    error.source().is_some_and(is_tls_error)
}
