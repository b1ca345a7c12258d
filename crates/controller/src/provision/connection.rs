//! Connections to the S3 server, to whom the authorities of the moment are trusted.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// A server that is there answers within a round trip.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Shorter than what servers and proxies keep idle connections for: one that ends just as it is used costs a retry.
const IDLE_FOR: Duration = Duration::from_secs(4);
const IDLE_CONNECTIONS: usize = 16;

pub(super) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Cursor<Vec<u8>>>>;

pub(super) struct Connections {
    authorities: Option<PathBuf>,
    /// With the time at which the file of authorities was changed.
    client: Mutex<(Option<SystemTime>, HttpClient)>,
}

impl Connections {
    /// `authorities` is a file in the place of the system's.
    pub(super) fn new(authorities: Option<&Path>) -> Self {
        let changed = authorities.and_then(changed);
        let client = Mutex::new((changed, client(authorities)));
        Self { authorities: authorities.map(Path::to_owned), client }
    }

    /// A `ConfigMap` may be made or changed while we run.
    pub(super) fn client(&self) -> HttpClient {
        let now = self.authorities.as_deref().and_then(changed);
        let mut known = self.client.lock().expect("nobody panics while connecting");
        if known.0 != now {
            *known = (now, client(self.authorities.as_deref()));
        }
        known.1.clone()
    }
}

fn changed(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|file| file.modified()).ok()
}

fn client(authorities: Option<&Path>) -> HttpClient {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_WITHIN));
    let tls = HttpsConnectorBuilder::new().with_tls_config(trusting(authorities));
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_FOR);
    client.pool_max_idle_per_host(IDLE_CONNECTIONS);
    client.build(tls.https_or_http().enable_http1().wrap_connector(connector))
}

/// Authorities that cannot be read trust nobody: requests say so, and whoever needs none is not disturbed.
fn trusting(authorities: Option<&Path>) -> ClientConfig {
    let builder = ClientConfig::builder();
    let Some(path) = authorities else {
        return match builder.clone().with_native_roots() {
            Ok(builder) => builder.with_no_client_auth(),
            Err(error) => {
                tracing::warn!(%error, "no authorities in the system: no certificate is trusted");
                builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
            }
        };
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).into_iter().flatten();
    let (added, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if added == 0 {
        tracing::warn!(path = %path.display(), "no authorities in this file: no certificate is trusted");
    }
    builder.with_root_certificates(roots).with_no_client_auth()
}
