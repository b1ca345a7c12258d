//! `s3-csi-node`

use std::process::ExitCode;

use clap::Parser as _;
use node::flags::Flags;
use node::run::run;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let logs = flags.logs.clone();
    service::program::run("s3-csi-node", &logs, async |client, stop| run(client, flags, stop).await).await
}
