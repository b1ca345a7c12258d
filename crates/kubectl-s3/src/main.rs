//! `kubectl-s3`

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_s3::flags::Flags;
use kubectl_s3::run::{TROUBLE, run};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    service::program::choose_tls_provider();
    match run(Flags::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(TROUBLE)
        }
    }
}
