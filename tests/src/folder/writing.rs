//! What becomes of a file that is open for writing.

use rustix::io::Errno;

use super::open_file::{Kind, Waiting};
use super::step::{Id, Outcome};
use super::{Folder, Objects, Verdict, require};

impl Folder {
    pub(super) fn write(&mut self, id: Id, content: &[u8], outcome: &Outcome) -> Verdict {
        let clear = !self.is_disturbed(id);
        let Kind::Writer(writer) = &mut self.file(id).kind else {
            return require(outcome.is_error(Errno::BADF), "it is open for reading");
        };
        if outcome.failed() {
            let right = !clear || writer.failed;
            // An upload that had begun has failed with the write.
            writer.fail();
            return require(right, "nothing keeps this program from writing");
        }
        require(!writer.failed, "what was written before is lost")?;
        writer.content.extend_from_slice(content);
        writer.waiting = Waiting::No;
        // A writer that continues its file does not wait for readers.
        let name = self.file(id).name.clone();
        for file in self.files.values_mut().filter(|file| file.name == name) {
            if let Kind::Reader { is_idle, .. } = &mut file.kind {
                *is_idle = true;
            }
        }
        Ok(())
    }

    /// What a close or an `fsync` does. Without an outcome, nobody has seen it.
    pub(super) fn publish(
        &mut self,
        id: Id,
        outcome: Option<&Outcome>,
        is_sync: bool,
        after: &Objects,
    ) -> Verdict {
        let name = self.file(id).name.clone();
        let clear = !self.disturbed.contains(&name);
        let before = self.objects.get(&name).cloned();
        let is_perhaps_emptied = !clear && self.writers_of(&name).any(|writer| writer.content.is_empty());
        let Kind::Writer(writer) = &mut self.file(id).kind else {
            if let Kind::Reader { is_idle, .. } = &mut self.file(id).kind {
                *is_idle |= !is_sync;
            }
            return require(!clear || outcome.is_none_or(|it| !it.failed()), "a reader has nothing to lose");
        };
        if !writer.is_due() {
            let right = !clear || writer.failed || outcome.is_none_or(|it| !it.failed());
            return require(right, "there is nothing to publish");
        }
        let begins_to_wait = writer.begins_to_wait() && !is_sync;
        if !clear
            && writer.waits()
            && (writer.waiting == Waiting::Perhaps || outcome.is_none())
            && outcome.is_none_or(|it| !it.failed())
            && after.get(&name).is_none_or(|content| !content.is_empty())
        {
            writer.waiting = Waiting::Perhaps;
            return Ok(());
        }
        let failed = match outcome {
            Some(outcome) => outcome.failed(),
            None => !begins_to_wait && !clear && after.get(&name) != Some(&writer.content),
        };
        if failed {
            writer.failed = true;
            return require(!clear, "nothing keeps this file from being published");
        }
        if begins_to_wait {
            writer.waiting = Waiting::Yes;
            return Ok(());
        }
        if let Some(length) = writer.published {
            // One empty object is like another: that of a file which was closed or completed within the same step.
            let is_own =
                before.as_deref() == Some(&writer.content[..length]) || (length == 0 && is_perhaps_emptied);
            require(is_own, "somebody else's object was replaced")?;
        }
        writer.waiting = Waiting::No;
        writer.published = Some(writer.content.len());
        let content = writer.content.clone();
        self.put(&name, content);
        Ok(())
    }

    pub(super) fn close(&mut self, actor: usize, id: Id, outcome: &Outcome, after: &Objects) -> Verdict {
        self.publish(id, Some(outcome), false, after)?;
        let file = self.file(id);
        let holder = file.holders.iter().position(|holder| *holder == actor).expect("it holds the file");
        file.holders.remove(holder);
        if file.holders.is_empty() {
            let name = file.name.clone();
            let completes = matches!(&file.kind, Kind::Writer(writer) if writer.waiting == Waiting::Yes);
            self.files.remove(&id);
            if completes {
                self.put(&name, Vec::new());
            }
        }
        Ok(())
    }

    pub(super) fn cut(&mut self, id: Id, length: u64, outcome: &Outcome) -> Verdict {
        let clear = !self.is_disturbed(id);
        match &self.file(id).kind {
            Kind::Reader { .. } => require(outcome.failed(), "it is open for reading"),
            Kind::Writer(_) if !clear => Ok(()),
            Kind::Writer(writer) if writer.content.len() as u64 == length => {
                require(!outcome.failed(), "the file has this length already")
            }
            Kind::Writer(_) => require(outcome.is_error(Errno::PERM), "lengths cannot be changed"),
        }
    }

    /// The program that is started closes everything that its parent holds, and the file itself once it has written. The
    /// parent closes a duplicate, too.
    pub(super) fn echo(
        &mut self,
        actor: usize,
        id: Id,
        content: &[u8],
        outcome: &Outcome,
        after: &Objects,
    ) -> Verdict {
        let held: Vec<(Id, usize)> = self
            .files
            .iter()
            .map(|(id, file)| (*id, file.holders.iter().filter(|holder| **holder == actor).count()))
            .collect();
        for (other, descriptors) in held {
            let descriptors = if other == id { descriptors + 1 } else { descriptors };
            if other == id && self.is_disturbed(id) && !outcome.failed() {
                // What these closes have published is not to be seen any more.
                continue;
            }
            for _ in 0..descriptors {
                self.publish(other, None, false, after)?;
            }
        }
        let is_writer = matches!(self.file(id).kind, Kind::Writer(_));
        if outcome.failed() {
            let clear = !self.is_disturbed(id);
            if let Kind::Writer(writer) = &mut self.file(id).kind {
                let right = !clear || writer.failed;
                writer.fail();
                return require(right, "nothing keeps this program from writing");
            }
            return Ok(());
        }
        require(is_writer, "it is open for reading")?;
        self.write(id, content, outcome)?;
        self.publish(id, Some(outcome), false, after)
    }
}
