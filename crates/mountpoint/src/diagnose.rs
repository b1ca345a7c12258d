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
use mountpoint_s3_client::config::{Allocator, EndpointConfig, Uri};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// The time for each address when the ones before have used up theirs.
const LEAST_PER_ADDRESS: Duration = Duration::from_millis(100);

/// Where the address of a proxy comes from.
pub(crate) const CORRECT_PROXY: &str =
    "correct `proxy.httpsProxy` of the installation, or `mountpointEnv.HTTPS_PROXY` of the volume";

/// The route to the server of one bucket, or to the proxy before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    host: String,
    port: u16,
    /// The file of trusted authorities, with TLS.
    authorities: Option<PathBuf>,
    /// Its URL without user and password, if the route goes through one.
    proxy: Option<String>,
}

impl Route {
    /// `None` if the address is not known.
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
            set(if encrypted { ["https_proxy", "HTTPS_PROXY"] } else { ["http_proxy", "HTTP_PROXY"] });
        let direct = set(["no_proxy", "NO_PROXY"]).is_some_and(|exceptions| excepted(&host, &exceptions));
        if let Some(proxy) = proxy.filter(|_| !direct) {
            return Self::to_proxy(&proxy);
        }
        let port = match u16::try_from(uri.host_port()).ok()? {
            0 if encrypted => 443,
            0 => 80,
            port => port,
        };
        let authorities =
            encrypted.then(|| ca_bundle.unwrap_or_else(|| Path::new(SYSTEM_AUTHORITIES)).to_owned());
        Some(Self { host, port, authorities, proxy: None })
    }

    fn to_proxy(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        // From the last `@`: a password that contains one must not get into a message by half.
        let address = rest.rsplit('@').next()?;
        let uri = Uri::new_from_str(&Allocator::default(), format!("{scheme}://{address}")).ok()?;
        let proxy = Some(format!("{scheme}://{}", uri.authority().to_str()?));
        let (host, port) = (uri.host_name().to_str()?.to_owned(), u16::try_from(uri.host_port()).ok()?);
        Some(Self { host, port, authorities: None, proxy })
    }

    pub(crate) fn proxy(&self) -> Option<&str> {
        self.proxy.as_deref()
    }

    /// The first step that fails; `None` if the server is reachable and trusted but does not answer.
    pub(crate) fn diagnose(&self) -> Option<Refused> {
        let Self { host, port, proxy, .. } = self;
        let unknown = |error: &str| {
            let remedy = match proxy {
                Some(proxy) => format!("of the proxy {proxy} is not known here ({error}): {CORRECT_PROXY}"),
                None => format!("is not known here ({error}): correct the endpoint, or the cluster's DNS"),
            };
            Some(Refused::new(Code::UnknownHost, format!("the host name `{host}` {remedy}")))
        };
        let unreachable = |error: &str| {
            let message = match proxy {
                Some(proxy) => format!("the proxy {proxy} cannot be reached ({error}): {CORRECT_PROXY}"),
                None => format!(
                    "{host}:{port} cannot be reached ({error}): check that the S3 server is running and that network \
                     policies allow the connection"
                ),
            };
            Some(Refused::new(Code::EndpointUnreachable, message))
        };
        if *port == 0 {
            // The S3 client assumes none.
            return unreachable("its port is missing");
        }
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
        unreachable(&failure.to_string())
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
    use mountpoint_s3_client::config::AddressingStyle;

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
    fn a_route_through_a_proxy_ends_at_the_proxy() {
        let proxy = [("HTTPS_PROXY", "http://proxy:3128")];
        let through = route("https://s3.test", AddressingStyle::Path, &proxy).unwrap();
        assert_eq!((through.host.as_str(), through.port, &through.authorities), ("proxy", 3128, &None));
        assert_eq!(through.proxy(), Some("http://proxy:3128"));
        let direct =
            |url, variables: &[_]| route(url, AddressingStyle::Path, variables).unwrap().proxy.is_none();
        assert!(direct("http://s3.test", &proxy));
        assert!(direct("https://s3.test", &[proxy[0], ("NO_PROXY", "localhost, .test")]));
        assert!(!excepted("latest", "test") && excepted("a.b", "*") && !excepted("a.b", ""));
    }

    #[test]
    fn the_password_of_a_proxy_is_in_no_message() {
        for url in ["http://me:word@127.0.0.1:0", "http://me:wo@word/word@127.0.0.1:0", "me:word@127.0.0.1"] {
            let route = route("https://s3.test", AddressingStyle::Path, &[("HTTPS_PROXY", url)]).unwrap();
            let Refused { code, message } = route.diagnose().unwrap();
            assert_eq!(code, Code::EndpointUnreachable, "{message}");
            assert!(message.starts_with("the proxy http://127.0.0.1"), "{message}");
            assert!(
                message.contains("port is missing") && message.contains("`proxy.httpsProxy`"),
                "{message}"
            );
            assert!(!message.contains("word") && !message.contains("me:"), "{message}");
        }
    }
}
