//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The state of the program: `Ok`, or what is wrong.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

pub struct Probes {
    /// Fails while only a restart helps.
    pub healthy: Check,
    /// Fails while the program cannot do its work.
    pub ready: Check,
    pub metrics: Arc<Mutex<Registry>>,
}

/// Binds now, so that an address in use stops the program at its start, and serves until `stop`.
pub async fn serve(address: SocketAddr, probes: Probes, stop: CancellationToken) -> io::Result<SocketAddr> {
    let listener = match TcpListener::bind(address).await {
        Err(error) => TcpListener::bind(without_ipv6(address, &error).ok_or(error)?).await?,
        Ok(listener) => listener,
    };
    let address = listener.local_addr()?;
    let Probes { healthy, ready, metrics } = probes;
    let answer = |check: Check| move || std::future::ready(verdict(&check));
    let router = Router::new()
        .route("/healthz", get(answer(healthy)))
        .route("/readyz", get(answer(ready)))
        .route("/metrics", get(move || scrape(Arc::clone(&metrics))));
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "probe server failed");
        }
    });
    Ok(address)
}

/// Where to listen instead on a kernel without IPv6, on which `[::]` stands for the IPv4 addresses only. On others it stands
/// for those of both kinds, so it serves clusters of either.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let is_missing = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].contains(&Errno::from_io_error(error)?);
    let every = address.ip() == Ipv6Addr::UNSPECIFIED;
    (is_missing && every).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

fn verdict(check: &Check) -> (StatusCode, String) {
    match check() {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(wrong) => (StatusCode::SERVICE_UNAVAILABLE, wrong),
    }
}

/// On a thread of its own: some figures are read from files.
async fn scrape(metrics: Arc<Mutex<Registry>>) -> impl IntoResponse {
    let figures = tokio::task::spawn_blocking(move || figures(&metrics)).await;
    match figures.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => {
            let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
            (StatusCode::OK, kind, text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

fn figures(metrics: &Mutex<Registry>) -> Result<String, String> {
    let mut text = String::new();
    encode(&mut text, &metrics.lock()).map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn the_default_address_serves_ipv4_and_ipv6() {
        let probes =
            Probes { healthy: Arc::new(|| Ok(())), ready: Arc::new(|| Ok(())), metrics: Arc::default() };
        let served = serve("[::]:0".parse().unwrap(), probes, CancellationToken::new()).await.unwrap();
        for host in ["127.0.0.1", "::1"] {
            let mut connection = TcpStream::connect((host, served.port())).await.unwrap();
            connection.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains(" 200 OK\r\n"), "{host}: {answer}");
        }
    }

    #[test]
    fn a_kernel_without_ipv6_serves_ipv4() {
        let instead = |address: &str, errno: Errno| {
            without_ipv6(address.parse().unwrap(), &errno.into()).map(|address| address.to_string())
        };
        for missing in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            assert_eq!(instead("[::]:8080", missing).as_deref(), Some("0.0.0.0:8080"));
            assert_eq!(instead("[fd00::1]:8080", missing), None, "an address of its own is meant");
        }
        assert_eq!(instead("[::]:8080", Errno::ADDRINUSE), None);
    }
}
