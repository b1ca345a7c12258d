//! `s3-csi-mountpoint`: the mount process. Serves one bucket on the FUSE descriptor that it was started with.

mod attach;
mod cache;
mod client;
mod connect;
mod credentials;
mod diagnose;
mod fuse;
mod inodes;
mod keys;
mod logging;
mod memory;
mod options;
mod prepare;
mod put;
mod refusal;
mod renewal;
mod server_timeout;
mod upload;
mod uploads;

use std::process::ExitCode;

use mounter::handover::{MountReply, Refused, Serving};

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
    let prepared = prepare::prepare(&options, &|name| std::env::var(name).ok());
    let session = match prepared.and_then(|prepared| prepared.attach(&options)) {
        Ok(session) => session,
        Err(refused) => return refuse(refused),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    println!("{}", MountReply::Serving(Serving { pid: std::process::id(), version }).to_line());
    match session.join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(refused: Refused) -> ExitCode {
    println!("{}", MountReply::Refused(refused).to_line());
    ExitCode::FAILURE
}
