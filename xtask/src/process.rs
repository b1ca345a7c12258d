//! Subprocesses whose output is read while they run and that are killed at their deadline.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How much of a failed program's output or of a log is shown: the cause is nearly always in the last lines.
const TAIL_LINES: usize = 25;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A line of a process's output.
pub enum Line {
    Out(String),
    Error(String),
}

pub struct Process {
    child: Child,
    lines: Receiver<Line>,
}

impl Process {
    /// Reads its standard output, and its standard error if the command has it piped.
    pub fn start(command: &mut Command) -> Result<Self> {
        let line = describe(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        let (sender, lines) = mpsc::channel();
        if let Some(errors) = child.stderr.take() {
            forward(errors, sender.clone(), Line::Error);
        }
        if let Some(output) = child.stdout.take() {
            forward(output, sender, Line::Out);
        }
        Ok(Self { child, lines })
    }

    /// Passes every line to `heard`. Returns `None` if the process still runs at the deadline.
    pub fn hear(&mut self, limit: Duration, mut heard: impl FnMut(Line)) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => heard(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                ended => return Ok(ended),
            }
        }
    }

    /// Kills it and its descendants without waiting, because a process that hangs in the kernel cannot end.
    pub fn kill(&mut self) {
        for pid in family(self.child.id()) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Runs to the end and returns the output; passes each line of standard error to `heard`. At the deadline, the process is
/// killed with its descendants.
pub fn listen(command: &mut Command, limit: Duration, mut heard: impl FnMut(&str)) -> Result<String> {
    let line = describe(command);
    let mut process = Process::start(command.stderr(Stdio::piped()))?;
    let (mut output, mut errors) = (String::new(), String::new());
    let status = process.hear(limit, |line| match line {
        Line::Out(line) => output.extend([&line, "\n"]),
        Line::Error(line) => {
            heard(&line);
            errors.extend([&line, "\n"]);
        }
    })?;
    match status {
        Some(status) if status.success() => Ok(output),
        Some(status) => bail!("{line}: {status}\n{}", tail(&format!("{output}{errors}"))),
        None => {
            process.kill();
            bail!("{line}: timed out after {} min\n{}", limit.as_secs() / 60, tail(&errors))
        }
    }
}

pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args().map(OsStr::to_string_lossy) {
        let _ = write!(line, " {argument}");
    }
    line
}

/// In a thread, because another process that inherited the pipe may keep it open forever. A carriage return also ends a
/// line, because programs show progress by rewriting one line.
fn forward(
    from: impl Read + Send + 'static,
    to: Sender<Line>,
    line: impl Fn(String) -> Line + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        for byte in BufReader::new(from).bytes().map_while(Result::ok) {
            if byte != b'\n' && byte != b'\r' {
                text.push(byte);
            } else if byte == b'\n' || !text.is_empty() {
                let said = String::from_utf8_lossy(&std::mem::take(&mut text)).into_owned();
                if to.send(line(said)).is_err() {
                    return;
                }
            }
        }
        if !text.is_empty() {
            let _ = to.send(line(String::from_utf8_lossy(&text).into_owned()));
        }
    });
}

/// The numbers of all processes.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The process and its descendants. A process whose parent has exited is reparented and is not found.
fn family(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes().filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// State and parent. They are parsed after the last parenthesis, because a program's name can contain anything.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_heard_and_output_is_returned() {
        let mut heard = Vec::new();
        let script = "echo out; printf 'half\\rwhole\\nlast' >&2";
        let output = listen(&mut shell(script), Duration::from_mins(1), |line| heard.push(line.to_owned()));
        assert_eq!(output.unwrap(), "out\n");
        assert_eq!(heard, ["half", "whole", "last"]);
        let failed = listen(&mut shell("echo why >&2; exit 3"), Duration::from_mins(1), |_| {}).unwrap_err();
        assert!(failed.to_string().ends_with("exit status: 3\nwhy"), "{failed}");
    }

    /// The child of the shell inherits the pipes, and would block a reader that waits for their end.
    #[test]
    fn at_the_deadline_it_ends_with_all_that_it_has_started() {
        let mut started = None;
        let script = "sleep 1000 & echo $! >&2; wait";
        let error = listen(&mut shell(script), Duration::from_secs(2), |line| started = line.parse().ok());
        assert!(error.unwrap_err().to_string().contains("timed out after"));
        let started: u32 = started.expect("the shell says what it has started");
        let state = || stat(started).map(|fields| fields.0);
        while state().is_some_and(|state| state != "Z") {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
