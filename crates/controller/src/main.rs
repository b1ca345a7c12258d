//! `s3-csi-controller`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser as _;
use controller::flags::Flags;
use controller::run::run;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    match start(Flags::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("s3-csi-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(flags: Flags) -> Result<()> {
    panics::abort_on_panic();
    service::logs::start(&flags.logs).map_err(anyhow::Error::msg)?;
    // Named, because a second provider anywhere in the tree would make the choice at run time a panic.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = kube::Client::try_default().await.context("cannot find the cluster")?;
    Ok(run(client, flags, service::stop::on_signal()?).await?)
}
