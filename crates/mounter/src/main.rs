//! `s3-csi-mounter`: the only process of a Mountpoint Pod that kubelet knows.

mod attend;
mod farewell;
mod flags;
mod listen;
mod log;
mod mount_process;

use std::process::ExitCode;

use attend::{Mounter, Outcome};
use flags::{Flags, Wanted};

fn main() -> ExitCode {
    mounter::panics::end_the_process();
    let flags = match Flags::parse(std::env::args().skip(1), &|name| std::env::var(name).ok()) {
        Ok(Wanted::Run(flags)) => flags,
        Ok(Wanted::Text(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = match Mounter::start(&flags) {
        Ok(mounter) => mounter.attend(),
        Err(error) => Outcome::Failed(error.to_string()),
    };
    match outcome {
        Outcome::Ended => {
            log::info("ended", &[]);
            ExitCode::SUCCESS
        }
        Outcome::Failed(reason) => {
            log::error(&reason, &[]);
            farewell::termination_message(&flags.termination_log, &reason);
            ExitCode::FAILURE
        }
    }
}
