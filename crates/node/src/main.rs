//! `s3-csi-node`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser as _;
use node::flags::Flags;
use node::run::run;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    match start(Flags::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("s3-csi-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(flags: Flags) -> Result<()> {
    panics::abort_on_panic();
    service::logs::start(&flags.logs).map_err(anyhow::Error::msg)?;
    // Explicit, because rustls panics when the dependency tree has two providers to choose from.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = kube::Client::try_default().await.context("cannot read the cluster configuration")?;
    Ok(run(client, flags, service::stop::on_signal()?).await?)
}
