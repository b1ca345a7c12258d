//! Runs other programs, with errors that show their output.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};

pub use crate::process::tail;
use crate::process::{describe, listen};

/// The longest are installations, for which Helm waits five minutes, and downloads of packages. The rest is for slow networks
/// and busy machines. Builds, lints and suites have their own deadlines.
const RUN_WITHIN: Duration = Duration::from_mins(30);

/// Runs to the end; on failure the error has the last lines of the program's output.
pub fn run(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// Like [`run`], and returns the lines of standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    listen(command, RUN_WITHIN, |_| {})
}

/// Runs with this process's own input and output, and returns its exit code. The program prints its own errors.
pub fn relay(command: &mut Command) -> Result<ExitCode> {
    let line = describe(command);
    let status = command.status().with_context(|| format!("cannot start {line}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The last lines of a log and where the rest of it is.
pub fn tail_of_log(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    format!("{}\n(log: {})", tail(&String::from_utf8_lossy(&text)), path.display())
}

/// Whether a program of this name can be started from `PATH`.
pub fn on_path(program: impl AsRef<Path>) -> bool {
    std::env::split_paths(&search_path()).any(|dir| dir.join(program.as_ref()).is_file())
}

/// `PATH` with the folders where Debian keeps daemons.
pub fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    std::env::join_paths(folders).unwrap_or(path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_command_and_its_last_words() {
        let error = run(Command::new("sh").args(["-c", "echo first; echo last >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("sh -c") && error.contains("exit status: 3"), "{error}");
        assert!(error.ends_with("first\nlast"), "{error}");
    }

    #[test]
    fn a_tail_keeps_only_the_end() {
        let text: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(tail(&text.join("\n")).lines().next(), Some("75"));
        assert_eq!(tail("one"), "one");
    }
}
