//! Notes when the certificate of the S3 server expires, as seen on each new TLS connection.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::proxy::Connector;
use crate::provision::metrics::CertificateExpiry;

type BoxError = Box<dyn Error + Send + Sync>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Connects, and records the expiry of the certificate that was accepted.
#[derive(Clone)]
pub(super) struct WatchedConnector {
    inner: HttpsConnector<Connector>,
    expiry: CertificateExpiry,
}

impl WatchedConnector {
    pub(super) fn new(inner: HttpsConnector<Connector>, expiry: CertificateExpiry) -> Self {
        Self { inner, expiry }
    }
}

impl Service<Uri> for WatchedConnector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let (connecting, expiry) = (self.inner.call(destination), self.expiry.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            if let Some(seconds) = expires(&stream) {
                expiry.set(seconds);
            }
            Ok(stream)
        })
    }
}

/// In seconds since 1970; `None` without TLS.
fn expires(stream: &Stream) -> Option<i64> {
    let MaybeHttpsStream::Https(stream) = stream else { return None };
    let (_, session) = stream.inner().get_ref();
    not_after(session.peer_certificates()?.first()?)
}

fn not_after(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let mut parameters = rcgen::CertificateParams::new(vec!["s3.test".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(not_after(certificate.der()), Some(1_927_843_200));
        assert_eq!(not_after(b"not a certificate"), None);
    }
}
