//! How both services start and end.

use std::error::Error;
use std::process::ExitCode;

use contract::text::causes;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::logs::{self, LogFlags};
use crate::stop;

/// Explicit, because rustls panics when the dependency tree has two providers to choose from.
pub fn choose_tls_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Runs a service until it fails or a signal ends it.
pub async fn run<E: Error + 'static>(
    name: &str,
    logs: &LogFlags,
    service: impl AsyncFnOnce(Client, CancellationToken) -> Result<(), E>,
) -> ExitCode {
    panics::abort_on_panic();
    choose_tls_provider();
    let run = async {
        logs::start(logs)?;
        let client = Client::try_default().await;
        let client =
            client.map_err(|error| format!("cannot read the cluster configuration: {}", causes(&error)))?;
        let stop = stop::on_signal().map_err(|error| error.to_string())?;
        service(client, stop).await.map_err(|error| causes(&error))
    };
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
