//! The process that serves the bucket: started with what was handed over, its output forwarded to the log, its end noticed.
//! Everything that a start needs is kept, so that another one can be started on the same descriptor.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, io};

use mounter::SURVIVAL;
use mounter::handover::{MountReply, MountRequest, Refused, Serving};
use mounter::quiesce::kill_between_requests;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::flags::Program;
use crate::lines::Lines;
use crate::log;

/// Lines of output kept for the reason of a failure.
const TAIL_LINES: usize = 12;
/// Of those lines, in bytes: a screen full.
const MAX_TAIL: usize = 3000;
/// Of the last line, in bytes: the report of a death has room for 800, and an Event for 1,024.
const MAX_LAST_LINE: usize = 500;
/// What `mount-s3` prints when it serves in the foreground.
const MOUNTED: &str = " is mounted at ";
/// Another one with each read.
const RANDOM_WORD: &str = "/proc/sys/kernel/random/uuid";

/// Of the mount process, whose work moves between its threads. Each arena keeps what was freed in it for seconds, and by default
/// there are four for each processor of the node: with those of 16 processors, listing 10,000 files takes some 100 MB more.
const ALLOCATOR: (&str, &str) = ("_RJEM_MALLOC_CONF", "narenas:2");

pub(crate) struct MountProcess {
    pub(crate) request: MountRequest,
    /// A copy of the one that the process has. The kernel ends a mount when the last copy is closed: one that outlives the
    /// process lets programs wait for the answers of its successor.
    descriptor: OwnedFd,
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    outputs: Vec<Lines>,
    /// In each of its replies, see [`MountReply::NONCE`].
    nonce: String,
    program: Program,
    tail: VecDeque<String>,
}

impl MountProcess {
    /// The descriptor becomes its standard input, so that no other program can inherit it. It works in the folder shared
    /// with the node, because the file names in the request are relative to it.
    pub(crate) fn start(
        program: &Program,
        request: MountRequest,
        descriptor: OwnedFd,
        comm: &Path,
    ) -> io::Result<Self> {
        let path = match program {
            Program::Own => std::env::current_exe()?.with_file_name("s3-csi-mountpoint"),
            Program::MountS3(path) => path.clone(),
        };
        let nonce = fs::read_to_string(RANDOM_WORD)?.trim().to_owned();
        let mut command = Command::new(&path);
        command.arg(&request.bucket).args(["/dev/fd/0", "--foreground"]).args(&request.arguments);
        // Outside of Amazon's cloud the metadata address does not answer, and each request to it costs seconds.
        command.env_clear().env("AWS_EC2_METADATA_DISABLED", "true").env(ALLOCATOR.0, ALLOCATOR.1);
        command.envs(&request.environment);
        if *program == Program::Own {
            command.args(["--survival-folder", SURVIVAL]).env(MountReply::NONCE, &nonce);
        }
        command
            .current_dir(comm)
            .stdin(descriptor.try_clone()?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", path.display()))
        })?;
        match supervise(&mut child) {
            Ok((outputs, end)) => Ok(Self {
                request,
                descriptor,
                child,
                end,
                outputs,
                nonce,
                program: program.clone(),
                tail: VecDeque::new(),
            }),
            Err(error) => {
                // It must not serve unsupervised.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// They become readable when there is something to do.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.outputs.iter().filter_map(Lines::descriptor).chain([self.end.as_fd()])
    }

    /// Forwards its output to the log, without the secrets of its request; returns its reply if that was in it.
    pub(crate) fn read_output(&mut self) -> Option<MountReply> {
        let mut reply = None;
        let lines: Vec<String> = self.outputs.iter_mut().flat_map(Lines::read).collect();
        for line in lines {
            match self.parse_reply(&line) {
                // It may quote a server, or a proxy's address with a password in it.
                Some(MountReply::Refused(Refused { code, message })) => {
                    let message = self.without_secrets(&message);
                    reply = reply.or(Some(MountReply::Refused(Refused::new(code, message))));
                }
                Some(serving) => reply = reply.or(Some(serving)),
                None => self.forward(self.without_secrets(&line)),
            }
        }
        reply
    }

    fn parse_reply(&self, line: &str) -> Option<MountReply> {
        match self.program {
            Program::Own => MountReply::from_line(line, &self.nonce),
            Program::MountS3(_) => line.contains(MOUNTED).then(|| {
                MountReply::Serving(Serving { pid: self.child.id(), version: "mount-s3".to_owned() })
            }),
        }
    }

    fn forward(&mut self, line: String) {
        log::forward(&line, &self.log_fields());
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn without_secrets(&self, text: &str) -> String {
        self.request.secrets().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    pub(crate) fn log_fields(&self) -> [(&str, &str); 3] {
        let MountRequest { volume_id, bucket, trace_id, .. } = &self.request;
        [("volume_id", volume_id), ("bucket", bucket), ("trace_id", trace_id)]
    }

    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Another one on the same descriptor. This one has ended, so that nothing reads from it.
    pub(crate) fn restart(self, comm: &Path) -> io::Result<Self> {
        Self::start(&self.program, self.request, self.descriptor, comm)
    }

    /// SIGKILL also ends a process that is stopped.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    /// It reports whether it can.
    pub(crate) fn ask_to_leave(&self) {
        // If it has ended meanwhile, that is noticed.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// No request of a program is lost with it.
    pub(crate) fn stop_between_requests(&mut self) {
        kill_between_requests(Pid::from_child(&self.child));
        self.stop();
    }

    /// Until it has ended.
    pub(crate) fn stop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        self.read_output();
    }

    /// The end of its output: the best explanation if it ended without a reply.
    pub(crate) fn last_output(&self) -> String {
        let output = self.tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let from = output.ceil_char_boundary(output.len().saturating_sub(MAX_TAIL));
        output[from..].to_owned()
    }

    /// What it said last, such as why it panicked.
    pub(crate) fn last_line(&self) -> &str {
        let line = self.tail.iter().rfind(|line| !line.is_empty()).map_or("", String::as_str);
        &line[..line.floor_char_boundary(MAX_LAST_LINE)]
    }
}

/// Its pipes, and a descriptor that is readable when it has ended.
fn supervise(child: &mut Child) -> io::Result<(Vec<Lines>, OwnedFd)> {
    let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    let outputs = outputs.into_iter().flatten().map(Lines::new).collect::<io::Result<_>>()?;
    Ok((outputs, pidfd_open(Pid::from_child(child), PidfdFlags::empty())?))
}
