//! Tests of the test cluster itself, on the machine: clusters that are interrupted while they start, and images that are
//! built twice.

mod clusters;
mod images;

use std::path::PathBuf;
use std::process::Command;

/// `cargo xtask`, as built by the command that runs this suite.
fn xtask() -> Command {
    let program = std::env::var_os("S3_CSI_XTASK").map(PathBuf::from);
    Command::new(program.expect("this suite is started by: cargo xtask test --only cluster"))
}
