//! Why an S3 server does not answer. The S3 client retries for minutes without reporting anything, and delays the failure
//! of a TLS handshake by up to half a minute on purpose; a mount needs the reason in time. So the route to the server is
//! tried once more, step by step.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use exchange::SYSTEM_AUTHORITIES;
use mounter::deadlines::DIAGNOSE_STEP;
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::EndpointConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// For each address when the ones before have used up the time.
const LEAST_PER_ADDRESS: Duration = Duration::from_millis(100);

/// The route to the server of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    host: String,
    port: u16,
    /// The file of trusted authorities, with TLS.
    authorities: Option<PathBuf>,
}

impl Route {
    /// `None` if requests go through a proxy, or the address is not known.
    pub(crate) fn to(
        bucket: &str,
        endpoint: &EndpointConfig,
        ca_bundle: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let uri = endpoint.resolve_for_bucket(bucket).ok()?.uri().ok()?;
        let encrypted = uri.scheme() == "https";
        let host = uri.host_name().to_str()?.to_owned();
        let set =
            |names: [&str; 2]| names.into_iter().find_map(|name| variable(name).filter(|it| !it.is_empty()));
        let proxy =
            set(if encrypted { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] });
        let direct = set(["NO_PROXY", "no_proxy"]).is_some_and(|exceptions| excepted(&host, &exceptions));
        if proxy.is_some() && !direct {
            return None;
        }
        let port = match u16::try_from(uri.host_port()).ok()? {
            0 if encrypted => 443,
            0 => 80,
            port => port,
        };
        let authorities =
            encrypted.then(|| ca_bundle.unwrap_or_else(|| Path::new(SYSTEM_AUTHORITIES)).to_owned());
        Some(Self { host, port, authorities })
    }

    /// The first step that fails; `None` if the server is reachable and trusted but does not answer.
    pub(crate) fn diagnose(&self) -> Option<Refused> {
        let Self { host, port, .. } = self;
        let unknown = |error: &str| {
            let message = format!(
                "the host name `{host}` is not known here ({error}): correct the endpoint, or the cluster's DNS"
            );
            Some(Refused::new(Code::UnknownHost, message))
        };
        let (sender, resolved) = mpsc::channel();
        let name = (host.clone(), *port);
        // The resolver has no deadline of its own.
        thread::spawn(move || sender.send(name.to_socket_addrs().map(Vec::from_iter)));
        let addresses = match resolved.recv_timeout(DIAGNOSE_STEP) {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return unknown(&error.to_string()),
            Err(_) => return unknown("no answer from the name server"),
        };
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let until = Instant::now() + DIAGNOSE_STEP;
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now()).max(LEAST_PER_ADDRESS);
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return self.shake_hands(stream),
                Err(error) => failure = error,
            }
        }
        let message = format!(
            "{host}:{port} cannot be reached ({failure}): is the S3 server running, and does the network allow it?"
        );
        Some(Refused::new(Code::EndpointUnreachable, message))
    }

    fn shake_hands(&self, mut stream: TcpStream) -> Option<Refused> {
        let authorities = self.authorities.as_deref()?;
        let mut roots = RootCertStore::empty();
        // A file that cannot be read contains no trusted authority, as for the S3 client.
        let certificates = CertificateDer::pem_file_iter(authorities).into_iter().flatten();
        roots.add_parsable_certificates(certificates.filter_map(Result::ok));
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(self.host.clone()).ok()?;
        let mut connection = ClientConnection::new(Arc::new(config), name).ok()?;
        stream.set_read_timeout(Some(DIAGNOSE_STEP)).ok()?;
        stream.set_write_timeout(Some(DIAGNOSE_STEP)).ok()?;
        while connection.is_handshaking() {
            match connection.complete_io(&mut stream) {
                Ok(_) => {}
                // Slow is not untrusted.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return None;
                }
                Err(error) => {
                    let message = format!(
                        "{}:{} is not trusted ({error}): give its authority's certificate to the driver \
                         (tls.caCertConfigMap), or correct the endpoint",
                        self.host, self.port
                    );
                    return Some(Refused::new(Code::UntrustedCertificate, message));
                }
            }
        }
        None
    }
}

/// Whether a list such as `.svc,10.0.0.1,example.com` names the host or a domain above it.
fn excepted(host: &str, exceptions: &str) -> bool {
    exceptions.split(',').map(|name| name.trim().trim_start_matches('.')).filter(|name| !name.is_empty()).any(
        |name| name == "*" || host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint_s3_client::config::{AddressingStyle, Allocator, Uri};

    fn route(url: &str, style: AddressingStyle, variables: &[(&str, &str)]) -> Option<Route> {
        let endpoint = Uri::new_from_str(&Allocator::default(), url).unwrap();
        let config = EndpointConfig::new("r").addressing_style(style).endpoint(endpoint);
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Route::to("bucket", &config, None, &variable)
    }

    #[test]
    fn the_route_is_that_of_requests() {
        let path = route("http://s3.test:8080", AddressingStyle::Path, &[]).unwrap();
        assert_eq!((path.host.as_str(), path.port, path.authorities), ("s3.test", 8080, None));
        let virtual_hosted = route("https://s3.test", AddressingStyle::Automatic, &[]).unwrap();
        assert_eq!((virtual_hosted.host.as_str(), virtual_hosted.port), ("bucket.s3.test", 443));
        assert_eq!(virtual_hosted.authorities.as_deref(), Some(Path::new(SYSTEM_AUTHORITIES)));
    }

    #[test]
    fn a_route_through_a_proxy_is_not_diagnosed() {
        let proxy = [("HTTPS_PROXY", "http://proxy")];
        assert_eq!(route("https://s3.test", AddressingStyle::Path, &proxy), None);
        assert!(route("http://s3.test", AddressingStyle::Path, &proxy).is_some());
        let exception = [proxy[0], ("NO_PROXY", "localhost, .test")];
        assert!(route("https://s3.test", AddressingStyle::Path, &exception).is_some());
        assert!(!excepted("latest", "test") && excepted("a.b", "*") && !excepted("a.b", ""));
    }
}
