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
        .route("/metrics", get(move || std::future::ready(figures(&metrics))));
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

fn figures(metrics: &Mutex<Registry>) -> impl IntoResponse + use<> {
    let mut text = String::new();
    let encoded = match metrics.lock() {
        Ok(registry) => encode(&mut text, &registry).map_err(|error| error.to_string()),
        Err(_) => Err("the metrics' owner panicked".to_owned()),
    };
    match encoded {
        Ok(()) => {
            let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
            (StatusCode::OK, kind, text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}
