//! `s3-csi-mountpoint`: serves one bucket on a FUSE descriptor that it was started with.

mod cache;
mod client;
mod connect;
mod credentials;
mod diagnose;
mod explain;
mod front;
mod memory;
mod options;
mod replies;
mod serve;
mod silence;
mod upload;
mod workers;

use std::process::ExitCode;

use mounter::reply::{Refused, Reply, Serving};
use mountpoint_s3_fs::logging::init_logging;

use options::{Options, Wanted};

/// The pool's buffers come and go in megabytes; the system's allocator would keep them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    mounter::panics::end_the_process();
    let options = match Options::read(std::env::args_os()) {
        Ok(Wanted::Serve(options)) => options,
        Ok(Wanted::Text(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(refused) => return refuse(refused),
    };
    let _logging = match init_logging(serve::logging(&options)) {
        Ok(handle) => handle,
        Err(error) => {
            return refuse(Refused::new(mounter::reply::Code::BadOption, format!("logging: {error:#}")));
        }
    };
    let served = serve::install_metrics(&options)
        .and_then(|metrics| Ok((metrics, serve::serve(&options, &|name| std::env::var(name).ok())?)));
    let (_metrics, session) = match served {
        Ok(served) => served,
        Err(refused) => return refuse(refused),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    println!("{}", Reply::Serving(Serving { pid: std::process::id(), version }).to_line());
    match session.join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(refused: Refused) -> ExitCode {
    println!("{}", Reply::Refused(refused).to_line());
    ExitCode::FAILURE
}
