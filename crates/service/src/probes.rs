//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
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
pub async fn serve(
    address: SocketAddr,
    probes: Probes,
    stop: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
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
    let registry = metrics.lock().map_err(|_| "the metrics' owner panicked".to_owned())?;
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| error.to_string())?;
    Ok(text)
}
