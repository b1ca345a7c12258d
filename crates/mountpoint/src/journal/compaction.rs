//! A journal that has become long is rewritten while lines are added to it: no answer to the kernel waits for more than the
//! last few of them to be copied. Whenever the process dies, there is one journal, and it is complete.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use mounter::JOURNAL;
use parking_lot::Mutex;

use super::{DRAFT, Journal, State, read, write};

/// At most this many bytes are usually copied while answers wait, which takes less than a millisecond.
const COPIED_AT_LAST: u64 = 256 * 1024;
/// The most copies before that. Lines are added far more slowly than they are copied.
const MOST_COPIES: usize = 10;
/// This many times the length of the journal must be free. A line that finds no room ends the journal, and lines that are
/// added meanwhile are added to both journals.
const ROOM: u64 = 2;

impl Journal {
    /// Rewrites the journal in the background, unless that is under way.
    pub(super) fn begin_rewriting(&self, state: &mut State) {
        if std::mem::replace(&mut state.is_being_rewritten, true) {
            return;
        }
        let (folder, shared, to) = (self.folder.clone(), Arc::clone(&self.state), state.length);
        let rewrite = move || {
            let rewritten = rewrite(&folder, &shared, to);
            shared.lock().end_rewriting(rewritten);
        };
        if let Err(error) = thread::Builder::new().name("journal".to_owned()).spawn(rewrite) {
            state.end_rewriting(Err(error));
        }
    }
}

impl State {
    fn end_rewriting(&mut self, rewritten: io::Result<()>) {
        self.is_being_rewritten = false;
        if let Err(error) = rewritten {
            tracing::warn!(%error, "cannot shorten the journal of the mount; it keeps growing");
            self.grow_on();
        }
    }
}

/// Rewrites the journal, which had this length when it was found too long.
fn rewrite(folder: &Path, shared: &Mutex<State>, to: u64) -> io::Result<()> {
    let rewritten = Draft::of(folder, to).and_then(|mut draft| {
        for _ in 0..MOST_COPIES {
            let to = shared.lock().length;
            if to - draft.copied <= COPIED_AT_LAST {
                break;
            }
            draft.catch_up(to)?;
        }
        let mut state = shared.lock();
        // A line could not be written, so there is no longer a journal.
        if state.file.is_none() {
            return fs::remove_file(&draft.path);
        }
        let (file, length) = draft.replace(folder, state.length)?;
        state.go_on_with(file, length);
        Ok(())
    });
    rewritten.inspect_err(|_| {
        // It takes memory that others need. There may be none.
        let _ = fs::remove_file(folder.join(DRAFT));
    })
}

/// The shorter journal, until it has all lines.
struct Draft {
    path: PathBuf,
    file: File,
    /// Positioned at the first line that the draft does not have.
    journal: File,
    copied: u64,
}

impl Draft {
    /// A draft with what the first `to` bytes of the journal say.
    fn of(folder: &Path, to: u64) -> io::Result<Self> {
        let space = rustix::fs::statvfs(folder)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < to.saturating_mul(ROOM) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (path, mut journal) = (folder.join(DRAFT), File::open(folder.join(JOURNAL))?);
        let (known, _) = read((&journal).take(to))?;
        let file = write(&path, &known)?;
        journal.seek(SeekFrom::Start(to))?;
        Ok(Self { path, file, journal, copied: to })
    }

    /// Copies the lines that were added since, up to this length of the journal.
    fn catch_up(&mut self, to: u64) -> io::Result<()> {
        let wanted = to - self.copied;
        if io::copy(&mut (&self.journal).take(wanted), &mut self.file)? != wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.copied = to;
        Ok(())
    }

    /// Makes the draft the journal, which has this length and to which nothing is added meanwhile. Returns the length of the
    /// draft.
    fn replace(mut self, folder: &Path, to: u64) -> io::Result<(File, u64)> {
        self.catch_up(to)?;
        let length = self.file.metadata()?.len();
        fs::rename(&self.path, folder.join(JOURNAL))?;
        Ok((self.file, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Begin, Known, Node, Record, Version};
    use std::time::Duration;

    fn node(name: &str) -> Node {
        let (name, version) = (name.to_owned(), Version::of(Some("one")));
        Node { parent: 1, name, is_directory: false, version, is_local: false, is_stale: false, lookups: 1 }
    }

    /// A mount with its journal, and what the kernel knows of it.
    struct Mount {
        folder: tempfile::TempDir,
        journal: Journal,
        known: Known,
    }

    impl Mount {
        fn begin() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (journal, _) = Journal::open(folder.path()).unwrap();
            journal.begin(Begin::default()).unwrap();
            Self { folder, journal, known: Known::default() }
        }

        fn record(&mut self, record: Record) {
            self.journal.record(&record);
            self.known.apply(record);
        }

        fn length(&self) -> u64 {
            fs::metadata(self.folder.path().join(JOURNAL)).unwrap().len()
        }

        /// Waits for it.
        fn is_rewritten(&self) {
            while self.journal.state().is_being_rewritten {
                thread::sleep(Duration::from_millis(1));
            }
        }

        /// What another process finds if this one dies now.
        fn is_complete(&self) {
            let copy = tempfile::tempdir().unwrap();
            for file in fs::read_dir(self.folder.path()).unwrap().flatten() {
                fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
            }
            let (_, found) = Journal::open(copy.path()).unwrap();
            assert_eq!(found.as_ref(), Some(&self.known));
        }
    }

    #[test]
    fn a_process_that_dies_while_it_rewrites_its_journal_leaves_a_complete_one() {
        let mut mount = Mount::begin();
        mount.record(Record::Inode(2, node("a")));
        (0..1000).for_each(|_| mount.record(Record::LookedUp(2)));
        let before = mount.length();
        let mut draft = Draft::of(mount.folder.path(), mount.journal.state().length).unwrap();
        mount.is_complete();
        mount.record(Record::Inode(3, node("b")));
        mount.record(Record::Forgotten(2, 1));
        mount.is_complete();
        draft.catch_up(mount.journal.state().length).unwrap();
        mount.is_complete();
        mount.record(Record::Renamed(1, "b".into(), 1, "a".into()));
        draft.file.set_len(draft.file.metadata().unwrap().len() - 3).unwrap();
        mount.is_complete();

        // That draft was torn, so this is another one.
        let draft = Draft::of(mount.folder.path(), before).unwrap();
        let to = mount.journal.state().length;
        let (file, length) = draft.replace(mount.folder.path(), to).unwrap();
        mount.is_complete();
        mount.journal.state().go_on_with(file, length);
        assert!(mount.length() == length && length < before);
        mount.record(Record::LookedUp(3));
        mount.is_complete();
    }

    #[test]
    fn lines_are_added_while_a_journal_is_rewritten() {
        const THREADS: u64 = 4;
        const LINES: u64 = 500;
        let mut mount = Mount::begin();
        mount.record(Record::Inode(2, node("a")));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..LINES {
                        mount.journal.state().rewrite_at = 0;
                        mount.journal.record(&Record::LookedUp(2));
                    }
                });
            }
        });
        (0..THREADS * LINES).for_each(|_| mount.known.apply(Record::LookedUp(2)));
        mount.is_rewritten();
        mount.journal.state().rewrite_at = 0;
        mount.record(Record::LookedUp(2));
        mount.is_rewritten();
        assert!(mount.length() < THREADS * LINES, "a line has more than one byte");
        mount.is_complete();
    }

    #[test]
    fn a_journal_that_has_ended_does_not_come_back() {
        let mut mount = Mount::begin();
        mount.record(Record::Inode(2, node("a")));
        let to = mount.journal.state().length;
        mount.journal.state().file = None;
        let journal = mount.folder.path().join(JOURNAL);
        rewrite(mount.folder.path(), &mount.journal.state, to).unwrap();
        assert_eq!(mount.length(), to, "not replaced");
        fs::remove_file(&journal).unwrap();
        rewrite(mount.folder.path(), &mount.journal.state, to).unwrap_err();
        assert!(!journal.exists() && !mount.folder.path().join(DRAFT).exists());
    }

    #[test]
    fn a_journal_for_which_there_is_no_room_twice_is_not_rewritten() {
        let mut mount = Mount::begin();
        mount.record(Record::Inode(2, node("a")));
        let error = rewrite(mount.folder.path(), &mount.journal.state, u64::MAX / 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        mount.is_complete();
    }
}
