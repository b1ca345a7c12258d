//! The process that serves the bucket: started with the descriptor, listened to, and seen off.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use mounter::order::Order;
use mounter::reply::{Refused, Reply, Serving};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::flags::Program;
use crate::log;

/// Lines kept for the reason of a failure, and the longest that one may be.
const TAIL_LINES: usize = 12;
const LONGEST_LINE: usize = 16 * 1024;
/// Of what it said last, in bytes: a screen full.
const LAST_WORDS: usize = 3000;
/// What is read of a pipe at once: a process that writes without pause must not keep us from everything else.
const AT_ONCE: usize = 64 * 1024;
/// What `mount-s3` prints when it serves in the foreground.
const MOUNTED: &str = " is mounted at ";

pub(crate) struct MountProcess {
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    outputs: Vec<Lines>,
    speaks_verdicts: bool,
    pub(crate) volume_id: String,
    pub(crate) bucket: String,
    secrets: Vec<String>,
    tail: VecDeque<String>,
}

impl MountProcess {
    /// The descriptor becomes its standard input: passed on without a moment in which another program could inherit it,
    /// and closed here, so that the mount ends with its server instead of leaving its users waiting.
    /// It works in the folder shared with the node: that is where the order's files are.
    pub(crate) fn start(
        program: &Program,
        order: Order,
        descriptor: OwnedFd,
        comm: &Path,
    ) -> io::Result<Self> {
        let path = match program {
            Program::Own => std::env::current_exe()?.with_file_name("s3-csi-mountpoint"),
            Program::MountS3(path) => path.clone(),
        };
        let mut command = Command::new(&path);
        command.arg(&order.bucket).args(["/dev/fd/0", "--foreground"]).args(&order.arguments);
        // Off the cloud that address answers nobody, and every request to it costs seconds.
        command.env_clear().env("AWS_EC2_METADATA_DISABLED", "true").envs(&order.environment);
        command.current_dir(comm).stdin(descriptor).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", path.display()))
        })?;
        let attended = attend(&mut child);
        let (outputs, end) = match attended {
            Ok(attended) => attended,
            Err(error) => {
                // Nobody would know of it: it must not serve.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let speaks_verdicts = *program == Program::Own;
        let secrets = order.secrets().map(str::to_owned).collect();
        let Order { volume_id, bucket, .. } = order;
        Ok(Self { child, end, outputs, speaks_verdicts, volume_id, bucket, secrets, tail: VecDeque::new() })
    }

    /// What becomes readable when there is something to do.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.outputs
            .iter()
            .filter(|lines| lines.open)
            .map(|lines| lines.pipe.as_fd())
            .chain([self.end.as_fd()])
    }

    /// Forwards what it printed; its verdict, if that was among it.
    pub(crate) fn listen(&mut self) -> Option<Reply> {
        let mut verdict = None;
        let lines: Vec<String> = self.outputs.iter_mut().flat_map(Lines::read).collect();
        for line in lines {
            match self.verdict(&line) {
                Some(found) => verdict = verdict.or(Some(found)),
                None => self.forward(&line),
            }
        }
        verdict
    }

    fn verdict(&self, line: &str) -> Option<Reply> {
        if self.speaks_verdicts {
            return Reply::from_line(line).map(|reply| match reply {
                // It may quote a server, or an address with a password in it.
                Reply::Refused(refused) => {
                    Reply::Refused(Refused::new(refused.code, self.without_secrets(&refused.message)))
                }
                serving @ Reply::Serving(_) => serving,
            });
        }
        let serving = || Reply::Serving(Serving { pid: self.child.id(), version: "mount-s3".to_owned() });
        line.contains(MOUNTED).then(serving)
    }

    fn forward(&mut self, line: &str) {
        let line = self.without_secrets(line);
        log::forward(&line, &[("volume_id", &self.volume_id), ("bucket", &self.bucket)]);
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends it, whatever it does.
    pub(crate) fn stop(mut self) {
        // It may have ended by itself since.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.listen();
    }

    /// What it said last: the best explanation of an end without a verdict. Cut at its beginning.
    pub(crate) fn last_words(&self) -> String {
        let words = self.tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let from = words.len().saturating_sub(LAST_WORDS);
        let from = (from..=words.len()).find(|at| words.is_char_boundary(*at)).unwrap_or(0);
        words[from..].to_owned()
    }
}

/// Its pipes, and a descriptor that tells of its end.
fn attend(child: &mut Child) -> io::Result<(Vec<Lines>, OwnedFd)> {
    let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    let outputs = outputs.into_iter().flatten().map(Lines::new).collect::<io::Result<_>>()?;
    Ok((outputs, pidfd_open(Pid::from_child(child), PidfdFlags::empty())?))
}

/// A pipe as lines, read without waiting.
struct Lines {
    pipe: std::fs::File,
    open: bool,
    begun: Vec<u8>,
}

impl Lines {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe: pipe.into(), open: true, begun: Vec::new() })
    }

    /// The lines that are complete. A line without end is cut rather than collected for ever.
    fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 8192];
        let mut total = 0;
        while self.open && total < AT_ONCE {
            match self.pipe.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(read) => {
                    total += read;
                    self.begun.extend(&buffer[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.open = error.kind() == io::ErrorKind::WouldBlock;
                    break;
                }
            }
            while let Some(end) = self.begun.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') {
                lines.push(text(&self.begun[..end]));
                self.begun.drain(..=end);
            }
            while self.begun.len() >= LONGEST_LINE {
                lines.push(text(&self.begun[..LONGEST_LINE]));
                self.begun.drain(..LONGEST_LINE);
            }
        }
        if !self.open && !self.begun.is_empty() {
            lines.push(text(&std::mem::take(&mut self.begun)));
        }
        lines
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_are_whole_and_bounded() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut lines = Lines::new(reader.into()).unwrap();
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.read(), ["one"]);
        writer.write_all(b"o\n\n").unwrap();
        assert_eq!(lines.read(), ["two", ""]);
        writer.write_all(&vec![b'x'; LONGEST_LINE + 3]).unwrap();
        assert_eq!(lines.read().iter().map(String::len).collect::<Vec<_>>(), [LONGEST_LINE]);
        drop(writer);
        assert_eq!((lines.read(), lines.open), (vec!["xxx".to_owned()], false));
    }
}
