//! `kubectl-s3`

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_s3::flags::Flags;
use kubectl_s3::run::{TROUBLE, run};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    // Named, because a second provider anywhere in the tree would make the choice at run time a panic.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run(Flags::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(TROUBLE)
        }
    }
}
