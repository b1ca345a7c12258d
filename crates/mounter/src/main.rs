//! `s3-csi-mounter`: PID 1 of a Mountpoint Pod.

mod deaths;
mod error_file;
mod events;
mod flags;
mod lines;
mod listen;
mod log;
mod mount_process;
mod supervisor;

use std::process::ExitCode;

use flags::{Flags, Invocation};
use supervisor::{Outcome, Supervisor};

fn main() -> ExitCode {
    panics::abort_on_panic();
    let flags = match Flags::parse(std::env::args().skip(1), &|name| std::env::var(name).ok()) {
        Ok(Invocation::Run(flags)) => flags,
        Ok(Invocation::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = match Supervisor::new(&flags) {
        Ok(supervisor) => supervisor.run(),
        Err(error) => Outcome::Failed(error.to_string()),
    };
    match outcome {
        Outcome::Ended => {
            log::info("ended", &[]);
            ExitCode::SUCCESS
        }
        Outcome::Failed(reason) => {
            log::error(&reason, &[]);
            error_file::write_termination_message(&flags.termination_log, &reason);
            ExitCode::FAILURE
        }
    }
}
