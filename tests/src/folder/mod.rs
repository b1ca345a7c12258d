//! A folder that is backed by a bucket, as programs may see it: which results of their operations are right, and what the
//! bucket holds afterwards. Pure, so that it can judge any mount. Long, because all of it is about the same few maps.
//!
//! As long as nobody interferes with the open files of a name, there is one right result. After another client or another
//! writer has, operations on these open files may fail; but what is in the bucket stays exact: a failed operation has changed
//! nothing, and nothing is replaced that a writer has not seen.

mod choice;
mod open_file;
mod reading;
mod step;
mod together;
mod writing;

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

pub use choice::{Random, choose, close};
use open_file::{Kind, OpenFile, Waiting, Writer};
pub use step::{Content, Id, Outcome, Step};

pub type Objects = BTreeMap<String, Vec<u8>>;

/// Why a result is wrong.
pub type Verdict = Result<(), String>;

#[derive(Clone, Debug, Default)]
pub struct Folder {
    objects: Objects,
    files: BTreeMap<Id, OpenFile>,
    /// Names with open files that somebody has interfered with.
    disturbed: BTreeSet<String>,
    /// Names that another client has deleted, and that the kernel may still know.
    deleted: BTreeSet<String>,
    /// Names whose objects another client has put there. If a mount process dies while it removes or renames one, its successor
    /// cannot know whether the object came later, and leaves it.
    replaced: BTreeSet<String>,
}

fn require(condition: bool, otherwise: &str) -> Verdict {
    if condition { Ok(()) } else { Err(otherwise.to_owned()) }
}

impl Folder {
    pub fn new(objects: Objects) -> Self {
        Self { objects, ..Self::default() }
    }

    /// The open files that the actor can use, and whether it can write to them.
    fn held_by(&self, actor: usize) -> Vec<(Id, bool)> {
        let held = self.files.iter().filter(|(_, file)| file.holders.contains(&actor));
        held.map(|(id, file)| (*id, matches!(file.kind, Kind::Writer(_)))).collect()
    }

    /// Bytes that were written to the file.
    fn length(&self, file: Id) -> usize {
        match self.files.get(&file).map(|file| &file.kind) {
            Some(Kind::Writer(writer)) => writer.content.len(),
            _ => 0,
        }
    }

    /// Whether the bucket may change after the step: the last close of a file that replaces another and that nothing was
    /// written to, because the kernel does not wait for the mount process then.
    pub fn ends_later(&self, step: &Step) -> bool {
        let Step::Close { file, .. } = step else { return false };
        self.files.get(file).is_some_and(|file| {
            let Kind::Writer(writer) = &file.kind else { return false };
            file.holders.len() == 1 && writer.begins_to_wait()
        })
    }

    /// Judges one step, given what the bucket holds after it.
    pub fn step(&mut self, step: &Step, outcome: &Outcome, after: &Objects) -> Verdict {
        match step {
            Step::Open { actor, file, name, write } => {
                self.open(*actor, *file, name, *write, outcome, after)?;
            }
            Step::Write { file, content } => self.write(*file, &content.0, outcome)?,
            Step::Duplicate { actor, file } => {
                require(!outcome.failed(), "a duplicate needs no server")?;
                self.file(*file).holders.push(*actor);
            }
            Step::Close { actor, file } => self.close(*actor, *file, outcome, after)?,
            Step::Sync { file } => self.publish(*file, Some(outcome), true, after)?,
            Step::Cut { file, length } => self.cut(*file, *length, outcome)?,
            Step::Echo { actor, file, content } => self.echo(*actor, *file, &content.0, outcome, after)?,
            Step::ReadOpen { file } => self.read_open(*file, outcome)?,
            Step::Read { name } => self.read(name, outcome, after)?,
            Step::List => self.list(outcome)?,
            Step::Remove { name } => self.remove(name, outcome)?,
            Step::Rename { name, to } => self.rename(name, to, outcome, after)?,
            Step::Truncate { .. } => {
                require(outcome.failed(), "a file is not opened for writing without truncating it")?;
            }
            Step::PutElsewhere { name, content } => {
                self.objects.insert(name.clone(), content.0.clone());
                self.deleted.remove(name);
                self.replaced.insert(name.clone());
                self.disturb(name);
            }
            Step::DeleteElsewhere { name } => {
                self.objects.remove(name);
                self.deleted.insert(name.clone());
                self.disturb(name);
            }
        }
        // A writer that continues its file opens it again, whether it can continue or not.
        if let Step::Write { file, .. } | Step::Echo { file, .. } = step
            && self.is_disturbed(*file)
        {
            let name = self.file(*file).name.clone();
            self.perhaps_complete_waiting(&name, after);
        }
        let open: BTreeSet<&String> = self.files.values().map(|file| &file.name).collect();
        self.disturbed.retain(|name| open.contains(name));
        if self.objects == *after {
            return Ok(());
        }
        let shown = |objects: &Objects| -> BTreeMap<String, Content> {
            let differing = objects.iter().filter(|(name, _)| self.objects.get(*name) != after.get(*name));
            differing.map(|(name, content)| (name.clone(), Content(content.clone()))).collect()
        };
        Err(format!("the bucket holds {:?} instead of {:?}", shown(after), shown(&self.objects)))
    }

    fn file(&mut self, id: Id) -> &mut OpenFile {
        self.files.get_mut(&id).expect("an open file")
    }

    fn is_disturbed(&self, id: Id) -> bool {
        self.files.get(&id).is_some_and(|file| self.disturbed.contains(&file.name))
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &Kind> {
        self.files.values().filter(move |file| file.name == name).map(|file| &file.kind)
    }

    fn writers_of(&self, name: &str) -> impl Iterator<Item = &Writer> {
        self.of(name).filter_map(|kind| match kind {
            Kind::Writer(writer) => Some(writer),
            Kind::Reader { .. } => None,
        })
    }

    /// Has an upload in progress, so that nobody else can open the file.
    fn is_being_written(&self, name: &str) -> bool {
        self.writers_of(name).any(|writer| writer.is_due() && !writer.waits())
    }

    fn disturb(&mut self, name: &str) {
        if self.of(name).next().is_some() {
            self.disturbed.insert(name.to_owned());
        }
    }

    /// The same after others have interfered: only an empty object can tell.
    fn perhaps_complete_waiting(&mut self, name: &str, after: &Objects) {
        let mut waits = false;
        for file in self.files.values_mut().filter(|file| file.name == name) {
            if let Kind::Writer(writer) = &mut file.kind
                && writer.waits()
            {
                writer.waiting = Waiting::Perhaps;
                waits = true;
            }
        }
        if waits && after.get(name).is_some_and(Vec::is_empty) {
            self.put(name, Vec::new());
        }
    }

    /// Opening a file completes the upload that waits for the next close.
    fn complete_waiting(&mut self, name: &str) {
        let mut completed = false;
        for file in self.files.values_mut().filter(|file| file.name == name) {
            if let Kind::Writer(writer) = &mut file.kind
                && writer.waits()
            {
                writer.waiting = Waiting::No;
                writer.published = Some(0);
                completed = true;
            }
        }
        if completed {
            self.put(name, Vec::new());
        }
    }

    fn put(&mut self, name: &str, content: Vec<u8>) {
        for file in self.files.values_mut().filter(|file| file.name == name) {
            if let Kind::Reader { contents, .. } = &mut file.kind {
                contents.push(content.clone());
            }
        }
        self.objects.insert(name.to_owned(), content);
        self.replaced.remove(name);
    }

    fn open(
        &mut self,
        actor: usize,
        file: Id,
        name: &str,
        write: bool,
        outcome: &Outcome,
        after: &Objects,
    ) -> Verdict {
        let clear = !self.disturbed.contains(name);
        let is_written = self.is_being_written(name);
        let is_read = self.of(name).any(|kind| matches!(kind, Kind::Reader { is_idle: false, .. }));
        let may_be_read = self.of(name).any(|kind| matches!(kind, Kind::Reader { .. }));
        if outcome.failed() {
            let waits = self.writers_of(name).any(Writer::waits);
            if !clear {
                self.perhaps_complete_waiting(name, after);
            }
            let is_missing = !write && !self.objects.contains_key(name) && !is_written && !waits;
            let right = !clear
                || (outcome.is_error(Errno::PERM) && (is_written || (write && may_be_read)))
                || (outcome.is_error(Errno::NOENT) && (is_missing || self.deleted.contains(name)));
            return require(right, "nobody else has opened this file");
        }
        require(!clear || !is_written, "another program is writing this file")?;
        require(!clear || !write || !is_read, "another program is reading this file")?;
        self.deleted.remove(name);
        if clear {
            self.complete_waiting(name);
        } else {
            self.perhaps_complete_waiting(name, after);
        }
        let kind = if write {
            self.disturb(name);
            let creates = !self.objects.contains_key(name);
            Kind::Writer(Writer {
                content: Vec::new(),
                creates,
                published: None,
                waiting: Waiting::No,
                failed: false,
            })
        } else {
            let object = self.objects.get(name).cloned();
            require(!clear || object.is_some(), "there is no such file")?;
            // Of a file that is disturbed, it may be the one before the disturbance.
            Kind::Reader { contents: object.into_iter().collect(), is_idle: false }
        };
        self.files.insert(file, OpenFile { name: name.to_owned(), holders: vec![actor], kind });
        Ok(())
    }

    fn list(&self, outcome: &Outcome) -> Verdict {
        let Outcome::Names(names) = outcome else { return Err("a folder can be listed".to_owned()) };
        let stored: BTreeSet<&String> = self.objects.keys().collect();
        let written: BTreeSet<&String> = self.files.values().map(|file| &file.name).collect();
        let missing: Vec<_> = stored.iter().filter(|name| !names.contains(**name)).collect();
        let unknown: Vec<_> =
            names.iter().filter(|name| !stored.contains(name) && !written.contains(name)).collect();
        require(
            missing.is_empty() && unknown.is_empty(),
            &format!("missing {missing:?}, unknown {unknown:?}"),
        )
    }

    fn remove(&mut self, name: &str, outcome: &Outcome) -> Verdict {
        let clear = !self.disturbed.contains(name);
        let is_written = self.writers_of(name).any(Writer::is_due);
        if outcome.failed() {
            let missing = !self.objects.contains_key(name) && !is_written;
            let right = !clear
                || (outcome.is_error(Errno::PERM) && is_written)
                || (outcome.is_error(Errno::NOENT) && missing)
                || (outcome.is_error(Errno::IO) && self.replaced.contains(name));
            return require(right, "the file can be deleted");
        }
        require(!clear || !is_written, "another program is writing this file")?;
        require(!clear || self.objects.contains_key(name), "there is no such file")?;
        self.objects.remove(name);
        self.disturb(name);
        Ok(())
    }

    fn rename(&mut self, name: &str, to: &str, outcome: &Outcome, after: &Objects) -> Verdict {
        let clear = ![name, to].iter().any(|name| self.disturbed.contains(*name));
        let is_written = [name, to].iter().any(|name| self.writers_of(name).any(Writer::is_due));
        if outcome.failed() {
            let right = !clear
                || (outcome.is_error(Errno::PERM) && is_written)
                || (outcome.is_error(Errno::NOENT) && !self.objects.contains_key(name))
                || (outcome.is_error(Errno::IO) && self.replaced.contains(name));
            // What fails after the copy leaves both.
            if outcome.is_error(Errno::IO)
                && after.get(to) == self.objects.get(name)
                && let Some(content) = self.objects.get(name).cloned()
            {
                self.disturb(to);
                self.put(to, content);
            }
            return require(right, "the file can be renamed");
        }
        require(!clear || !is_written, "another program is writing one of these files")?;
        let content = self.objects.remove(name).ok_or("there is no such file")?;
        self.disturb(name);
        self.disturb(to);
        self.put(to, content);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
