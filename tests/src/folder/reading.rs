//! What programs read.

use rustix::io::Errno;

use super::open_file::Kind;
use super::step::{Content, Id, Outcome};
use super::{Folder, Objects, Verdict, require};

impl Folder {
    pub(super) fn read_open(&mut self, id: Id, outcome: &Outcome) -> Verdict {
        let name = self.file(id).name.clone();
        let clear = !self.disturbed.contains(&name);
        let written: Vec<Vec<u8>> = self.writers_of(&name).map(|writer| writer.content.clone()).collect();
        let object = self.objects.get(&name).cloned();
        let Kind::Reader { contents, is_idle } = &mut self.file(id).kind else {
            return require(outcome.failed(), "it is open for writing");
        };
        match outcome {
            Outcome::Content(Content(content)) => {
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

    pub(super) fn read(&mut self, name: &str, outcome: &Outcome, after: &Objects) -> Verdict {
        let clear = !self.disturbed.contains(name);
        let is_written = self.is_being_written(name);
        if !clear {
            self.perhaps_complete_waiting(name, after);
        } else if !outcome.failed() {
            self.complete_waiting(name);
        }
        match outcome {
            Outcome::Content(Content(content)) => {
                require(!clear || !is_written, "another program is writing this file")?;
                require(self.objects.get(name) == Some(content), "this is not the content of the object")
            }
            Outcome::Failed(_) => {
                // Whatever others have done to the open files of the name: a program that opens it now reads the object, unless
                // one of them has something to publish.
                let is_pending = self.writers_of(name).any(|writer| writer.is_due() || writer.waits());
                let right = (!clear && is_pending)
                    || (outcome.is_error(Errno::PERM) && is_written)
                    || (outcome.is_error(Errno::NOENT) && !self.objects.contains_key(name));
                require(right, "the file can be read")
            }
            _ => Err("a read returns contents".to_owned()),
        }
    }
}
