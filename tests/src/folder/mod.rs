//! A folder that is backed by a bucket, as programs may see it: which results of their operations are right, and what the
//! bucket holds afterwards. Pure, so that it can judge any mount.
//!
//! As long as nobody interferes with the open files of a name, there is one right result. After another client or another
//! writer has, operations on these open files may fail; but what is in the bucket stays exact: a failed operation has changed
//! nothing, and nothing is replaced that a writer has not seen.

mod open_file;
mod step;
mod writing;

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use open_file::{Kind, OpenFile, Writer};
pub use step::{Id, Outcome, Step};

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
}

fn require(condition: bool, otherwise: &str) -> Verdict {
    if condition { Ok(()) } else { Err(otherwise.to_owned()) }
}

impl Folder {
    pub fn new(objects: Objects) -> Self {
        Self { objects, ..Self::default() }
    }

    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The open files that the actor can use, and whether it can write to them.
    pub fn held_by(&self, actor: usize) -> Vec<(Id, bool)> {
        let held = self.files.iter().filter(|(_, file)| file.holders.contains(&actor));
        held.map(|(id, file)| (*id, matches!(file.kind, Kind::Writer(_)))).collect()
    }

    /// Bytes that were written to the file.
    pub fn length(&self, file: Id) -> usize {
        match self.files.get(&file).map(|file| &file.kind) {
            Some(Kind::Writer(writer)) => writer.content.len(),
            _ => 0,
        }
    }

    /// Judges one step, given what the bucket holds after it.
    pub fn step(&mut self, step: &Step, outcome: &Outcome, after: &Objects) -> Verdict {
        match step {
            Step::Open { actor, file, name, write } => {
                self.open(*actor, *file, name, *write, outcome, after)?;
            }
            Step::Write { file, content } => self.write(*file, content, outcome)?,
            Step::Duplicate { actor, file } => {
                require(!outcome.failed(), "a duplicate needs no server")?;
                self.file(*file).holders.push(*actor);
            }
            Step::Close { actor, file } => self.close(*actor, *file, outcome, after)?,
            Step::Sync { file } => self.publish(*file, Some(outcome), true, after)?,
            Step::Cut { file, length } => self.cut(*file, *length, outcome)?,
            Step::Echo { actor, file, content } => self.echo(*actor, *file, content, outcome, after)?,
            Step::ReadOpen { file } => self.read_open(*file, outcome)?,
            Step::Read { name } => self.read(name, outcome, after)?,
            Step::List => self.list(outcome)?,
            Step::Remove { name } => self.remove(name, outcome)?,
            Step::Rename { .. } => require(outcome.failed(), "renames are refused")?,
            Step::Truncate { .. } => {
                require(outcome.failed(), "a file is not opened for writing without truncating it")?;
            }
            Step::PutElsewhere { name, content } => {
                self.objects.insert(name.clone(), content.clone());
                self.deleted.remove(name);
                self.disturb(name);
            }
            Step::DeleteElsewhere { name } => {
                self.objects.remove(name);
                self.deleted.insert(name.clone());
                self.disturb(name);
            }
        }
        // Also a writer that cannot continue its own file has opened it.
        if let Step::Write { file, .. } | Step::Echo { file, .. } = step
            && let Some(OpenFile { name, .. }) = self.files.get(file)
            && outcome.failed()
            && after.get(name).is_some_and(Vec::is_empty)
        {
            self.complete_waiting(&name.clone());
        }
        let open: BTreeSet<&String> = self.files.values().map(|file| &file.name).collect();
        self.disturbed.retain(|name| open.contains(name));
        if self.objects == *after {
            return Ok(());
        }
        let sizes = |objects: &Objects| -> Vec<String> {
            objects.iter().map(|(name, content)| format!("{name}: {} bytes", content.len())).collect()
        };
        Err(format!("the bucket holds {:?} instead of {:?}", sizes(after), sizes(&self.objects)))
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
        self.writers_of(name).any(|writer| writer.is_due() && !writer.waits)
    }

    fn disturb(&mut self, name: &str) {
        if self.of(name).next().is_some() {
            self.disturbed.insert(name.to_owned());
        }
    }

    /// Whoever opens a file completes the upload that waits for the next close.
    fn complete_waiting(&mut self, name: &str) {
        let mut completed = false;
        for file in self.files.values_mut().filter(|file| file.name == name) {
            if let Kind::Writer(writer) = &mut file.kind
                && std::mem::take(&mut writer.waits)
            {
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
            let waits = self.writers_of(name).any(|writer| writer.waits);
            if !clear && waits && after.get(name).is_some_and(Vec::is_empty) {
                self.complete_waiting(name);
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
        let waits = self.writers_of(name).any(|writer| writer.waits);
        if waits && (clear || after.get(name).is_some_and(Vec::is_empty)) {
            self.complete_waiting(name);
        }
        let kind = if write {
            self.disturb(name);
            let creates = !self.objects.contains_key(name);
            Kind::Writer(Writer {
                content: Vec::new(),
                creates,
                published: None,
                waits: false,
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

    fn read_open(&mut self, id: Id, outcome: &Outcome) -> Verdict {
        let name = self.file(id).name.clone();
        let clear = !self.disturbed.contains(&name);
        let written: Vec<Vec<u8>> = self.writers_of(&name).map(|writer| writer.content.clone()).collect();
        let object = self.objects.get(&name).cloned();
        let Kind::Reader { contents, is_idle } = &mut self.file(id).kind else {
            return require(outcome.failed(), "it is open for writing");
        };
        match outcome {
            Outcome::Content(content) => {
                // Through the kernel's cache, a reader may see what a writer on the same node has written so far.
                let is_cached = written.iter().any(|written| written.starts_with(content));
                let known =
                    contents.contains(content) || is_cached || (!clear && object.as_ref() == Some(content));
                require(known, "this was never the content of the file")
            }
            Outcome::Failed(_) => {
                let unchanged =
                    clear && !*is_idle && contents.len() == 1 && object.as_ref() == contents.first();
                require(!unchanged, "the file has not changed")
            }
            _ => Err("a read returns contents".to_owned()),
        }
    }

    fn read(&mut self, name: &str, outcome: &Outcome, after: &Objects) -> Verdict {
        let clear = !self.disturbed.contains(name);
        let is_written = self.is_being_written(name);
        if !outcome.failed() && after.get(name).is_some_and(Vec::is_empty) {
            self.complete_waiting(name);
        }
        match outcome {
            Outcome::Content(content) => {
                require(!clear || !is_written, "another program is writing this file")?;
                require(self.objects.get(name) == Some(content), "this is not the content of the object")
            }
            Outcome::Failed(_) => {
                let right = !clear
                    || (outcome.is_error(Errno::PERM) && is_written)
                    || (outcome.is_error(Errno::NOENT) && !self.objects.contains_key(name));
                require(right, "the file can be read")
            }
            _ => Err("a read returns contents".to_owned()),
        }
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
                || (outcome.is_error(Errno::NOENT) && missing);
            return require(right, "the file can be deleted");
        }
        require(!clear || !is_written, "another program is writing this file")?;
        require(!clear || self.objects.contains_key(name), "there is no such file")?;
        self.objects.remove(name);
        self.disturb(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
