//! `s3-csi-controller`

use std::process::ExitCode;

use clap::Parser as _;
use controller::flags::Flags;
use controller::run::run;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let logs = flags.logs.clone();
    service::program::run("s3-csi-controller", &logs, async |client, stop| run(client, flags, stop).await)
        .await
}
