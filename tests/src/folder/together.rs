//! Two steps at the same time, of different programs and about different names: none of them changes what the other one may
//! see. Of steps about the same name, the model would have to know in which order each of their requests is carried out.

use std::collections::BTreeSet;

use super::{Folder, Id, Objects, Outcome, Step, Verdict};

impl Folder {
    /// The names that a step is about. `None` if that is all of them.
    fn names(&self, actor: usize, step: &Step) -> Option<BTreeSet<String>> {
        let of = |file: &Id| self.files[file].name.clone();
        match step {
            Step::List => None,
            // The program that is started closes everything that the actor holds.
            Step::Echo { .. } => Some(self.held_by(actor).iter().map(|(file, _)| of(file)).collect()),
            Step::Write { file, .. }
            | Step::Duplicate { file, .. }
            | Step::Close { file, .. }
            | Step::Sync { file }
            | Step::Cut { file, .. }
            | Step::ReadOpen { file } => Some([of(file)].into()),
            Step::Rename { name, to } => Some([name.clone(), to.clone()].into()),
            Step::Open { name, .. }
            | Step::Read { name }
            | Step::Remove { name }
            | Step::Truncate { name, .. }
            | Step::PutElsewhere { name, .. }
            | Step::DeleteElsewhere { name } => Some([name.clone()].into()),
        }
    }

    /// Whether two programs can do these steps at the same time.
    pub fn are_independent(&self, (first, step): &(usize, Step), (second, other): &(usize, Step)) -> bool {
        let (names, others) = (self.names(*first, step), self.names(*second, other));
        first != second && names.zip(others).is_some_and(|(names, others)| names.is_disjoint(&others))
    }

    /// Judges steps that were done at the same time, given what the bucket holds after all of them.
    pub fn steps(&mut self, steps: &[(usize, Step)], outcomes: &[Outcome], after: &Objects) -> Verdict {
        for ((actor, step), outcome) in steps.iter().zip(outcomes) {
            let own = self.names(*actor, step).filter(|_| steps.len() > 1);
            let is_own = |name: &String| own.as_ref().is_none_or(|own| own.contains(name));
            let kept = self.objects.iter().filter(|(name, _)| !is_own(name));
            let changed = after.iter().filter(|(name, _)| is_own(name));
            let seen = kept.chain(changed).map(|(name, content)| (name.clone(), content.clone())).collect();
            self.step(step, outcome, &seen)?;
        }
        Ok(())
    }
}
