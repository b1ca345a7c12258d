//! `s3-csi-mountpoint`: the mount process. Serves one bucket on the FUSE descriptor that it was started with.

mod abort;
mod attach;
mod cache;
mod changes;
mod client;
mod completion;
mod connect;
mod continuation;
mod copies;
mod credentials;
mod diagnose;
mod first_read;
mod fuse;
mod inodes;
mod journal;
mod kept_keys;
mod keys;
mod leave;
mod listed;
mod listings;
mod logging;
mod lookup;
mod memory;
mod meter;
mod multipart;
mod numbers;
mod opening;
mod options;
mod outdated;
mod prepare;
mod put;
mod raw_client;
mod readers;
mod refusal;
mod renewal;
mod reopen;
mod scoped;
mod server_timeout;
mod takeover;
mod telemetry;
mod upload;
mod uploads;

use std::path::Path;
use std::process::ExitCode;

use mounter::handover::{MountReply, Refused, Serving};

use meter::METER;
use options::{Invocation, Options};

/// The buffers come and go in megabytes; the system's allocator would keep them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    panics::abort_on_panic();
    let options = match Options::read(std::env::args_os()) {
        Ok(Invocation::Serve(options)) => options,
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(refused) => return refuse(refused),
    };
    let _handles = match logging::install(&options) {
        Ok(handles) => handles,
        Err(refused) => return refuse(refused),
    };
    // The working directory is the one shared with the node.
    if let Err(error) = METER.report(Path::new(".")) {
        tracing::warn!(%error, "cannot report figures; the mount has no metrics");
    }
    let prepared = prepare::prepare(&options, &|name| std::env::var(name).ok());
    let session = match prepared.and_then(|prepared| prepared.attach(&options)) {
        Ok(session) => session,
        Err(refused) => return refuse(refused),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    MountReply::Serving(Serving { pid: std::process::id(), version }).print();
    match session.join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(refused: Refused) -> ExitCode {
    MountReply::Refused(refused).print();
    ExitCode::FAILURE
}
