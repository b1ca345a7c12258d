//! The journal of a mount: what another mount process needs to continue where this one has died. A line is written before the
//! kernel gets the answer that it is about, so that the kernel never knows of anything that the journal does not. What is
//! lost with a process is at most that the kernel has forgotten something.

mod compaction;
mod known;
mod record;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use known::{Handle, Known, Nodes};
pub(crate) use record::{
    Access, Begin, Checksums, Completion, Encryption, Node, Open, PublishedObject, Record, Terms, Version,
};

/// In the folder that outlives the process. The mounter starts a successor as long as it exists.
use mounter::JOURNAL;
use parking_lot::{Mutex, MutexGuard};

/// Renamed to the journal when it is complete. A draft that a dead process has left is overwritten.
const DRAFT: &str = ".journal";
/// Bytes after which a journal is rewritten, at least: a hundred thousand lines, which are read in a tenth of a second.
const REWRITE_AT: u64 = 8 * 1024 * 1024;
/// A journal is rewritten again when it is this many times as long as after the last time, so that a mount that knows many
/// files does not rewrite all the time. The factor is small because the journal is in memory.
const REWRITE_GROWTH: u64 = 2;
/// Bytes of noted lines that are written without a commit. When the kernel drops its cache, it forgets a hundred thousand files,
/// and nothing else may be recorded for hours.
const COMMIT_AT: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while nothing is recorded: before the mount has begun, and after a failure.
    file: Option<File>,
    lines: Vec<u8>,
    length: u64,
    rewrite_at: u64,
    is_being_rewritten: bool,
}

impl Journal {
    /// Also returns what a predecessor has left, if there was one.
    pub(crate) fn open(folder: &Path) -> io::Result<(Self, Option<Known>)> {
        let path = folder.join(JOURNAL);
        let journal = Self { folder: folder.to_owned(), state: Arc::default() };
        if !path.exists() {
            return Ok((journal, None));
        }
        let (known, length) = read(File::open(path)?)?;
        journal.shorten(&mut journal.state(), &known, length)?;
        Ok((journal, Some(known)))
    }

    /// A journal that records nothing.
    pub(crate) fn off() -> Self {
        Self { folder: PathBuf::new(), state: Arc::default() }
    }

    /// From now on the mount survives this process.
    pub(crate) fn begin(&self, begin: Begin) -> io::Result<()> {
        self.rewrite(&mut self.state(), &Known { begin, ..Known::default() })
    }

    /// How many open files a successor could not continue, because bytes that programs have written are nowhere but in this
    /// process.
    pub(crate) fn lost_without_this_process(&self) -> io::Result<usize> {
        // Only programs that write wait for this. Answers do not.
        let (journal, length) = {
            let state = self.state();
            if state.file.is_none() {
                return Err(io::Error::other("it has no journal"));
            }
            (File::open(self.folder.join(JOURNAL))?, state.length)
        };
        let (known, _) = read(journal.take(length))?;
        Ok(known.handles.values().filter(|handle| handle.is_lost()).count())
    }

    /// Another process continues. It may be of an older release, which need not know records that no longer matter.
    pub(crate) fn leave(&self) {
        self.record(&Record::Left);
        let state = &mut *self.state();
        if state.file.is_none() || state.is_being_rewritten {
            return;
        }
        let shortened = File::open(self.folder.join(JOURNAL)).and_then(read);
        if let Err(error) = shortened.and_then(|(known, length)| self.shorten(state, &known, length)) {
            tracing::warn!(%error, "cannot shorten the journal of the mount");
        }
    }

    /// Whether everything was written so far, so that the mount survives this process.
    pub(crate) fn is_kept(&self) -> bool {
        self.state().file.is_some()
    }

    pub(crate) fn record(&self, record: &Record) {
        self.note(record);
        self.commit();
    }

    /// The next commit writes the record. Records stay in the order of the calls.
    pub(crate) fn note(&self, record: &Record) {
        let state = &mut *self.state();
        // Numbers and strings always serialize.
        if state.file.is_some() && serde_json::to_writer(&mut state.lines, record).is_ok() {
            state.lines.push(b'\n');
        }
        if state.lines.len() >= COMMIT_AT {
            self.commit_lines(state);
        }
    }

    /// Writes all noted records at once.
    pub(crate) fn commit(&self) {
        self.commit_lines(&mut self.state());
    }

    fn commit_lines(&self, state: &mut State) {
        if let Err(error) = self.append(state) {
            // The mount works on. With a journal that misses something, a successor would serve wrong files; without one
            // the mounter ends the mount with this process.
            tracing::warn!(%error, "the mount will not survive its process: cannot write its journal");
            (state.file, state.lines) = (None, Vec::new());
            let _ = fs::remove_file(self.folder.join(JOURNAL));
        }
    }

    fn append(&self, state: &mut State) -> io::Result<()> {
        let Some(file) = &mut state.file else { return Ok(()) };
        file.write_all(&state.lines)?;
        state.length += state.lines.len() as u64;
        state.lines.clear();
        if state.length > state.rewrite_at {
            self.begin_rewriting(state);
        }
        Ok(())
    }

    /// Rewrites it, or goes on with it as it is: there may be no room for two.
    fn shorten(&self, state: &mut State, known: &Known, length: u64) -> io::Result<()> {
        let Err(error) = self.rewrite(state, known) else { return Ok(()) };
        tracing::warn!(%error, "cannot shorten the journal of the mount; it keeps growing");
        let file = File::options().append(true).open(self.folder.join(JOURNAL))?;
        // Cuts off a torn line.
        file.set_len(length)?;
        state.go_on_with(file, length);
        Ok(())
    }

    /// Replaces the journal by renaming, so that a process that dies meanwhile leaves the old one.
    fn rewrite(&self, state: &mut State, known: &Known) -> io::Result<()> {
        let draft = self.folder.join(DRAFT);
        let written = write(&draft, known).and_then(|file| {
            fs::rename(&draft, self.folder.join(JOURNAL))?;
            Ok((file.metadata()?.len(), file))
        });
        let (length, file) = written.inspect_err(|_| {
            // It takes memory that others need. There may be none.
            let _ = fs::remove_file(&draft);
        })?;
        state.go_on_with(file, length);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn go_on_with(&mut self, file: File, length: u64) {
        (self.file, self.length) = (Some(file), length);
        self.grow_on();
    }

    fn grow_on(&mut self) {
        self.rewrite_at = REWRITE_AT.max(self.length * REWRITE_GROWTH);
    }
}

/// With the length of all complete lines: the answer that a torn last line was about has not been sent.
fn read(journal: impl Read) -> io::Result<(Known, u64)> {
    let (mut known, mut length) = (Known::default(), 0);
    let mut reader = BufReader::new(journal);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if line.last() == Some(&b'\n') {
            known.apply(serde_json::from_slice(&line)?);
            length += line.len() as u64;
        }
        line.clear();
    }
    Ok((known, length))
}

fn write(path: &Path, known: &Known) -> io::Result<File> {
    let mut writer = BufWriter::new(File::create(path)?);
    for record in known.records() {
        serde_json::to_writer(&mut writer, &record)?;
        writer.write_all(b"\n")?;
    }
    writer.into_inner().map_err(io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests;
