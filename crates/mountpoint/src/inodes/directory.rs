//! The listing of a directory, by the kernel's numbers.

use mountpoint_s3_fs::metablock::{
    AddDirEntry, AddDirEntryResult, InodeError, InodeInformation, InodeNo, Metablock,
};

use super::{Inodes, entry_of};
use crate::listed::listing;

impl<M: Metablock> Inodes<M> {
    /// With `learns`, the kernel learns of each entry, as if it had looked it up.
    pub(super) async fn list(
        &self,
        (parent, fh): (InodeNo, u64),
        offset: i64,
        learns: bool,
        mut add: AddDirEntry<'_>,
    ) -> Result<(), InodeError> {
        let library = self.number(parent).await?;
        let numbers = &self.numbers;
        let answered = self.listed().get(&fh).cloned().unwrap_or_default();
        let of = answered.clone();
        let renumber: AddDirEntry<'_> = Box::new(move |found: InodeInformation, name, offset, generation| {
            let (kind, mut stat) = (found.kind(), found.stat().clone());
            if stat.etag.is_some()
                && let Some(left) = self.note_listed(library, &name.to_string_lossy(), &of)
            {
                stat.update_validity(left);
            }
            let shown = |ino| InodeInformation::new(ino, stat, kind);
            if name == "." || name == ".." {
                return add(shown(numbers.of_library(found.ino())), name, offset, generation);
            }
            let entry = entry_of(found.ino(), kind, found.stat(), false);
            let text = name.to_string_lossy().into_owned();
            let ino = numbers.number(parent, &text, &entry);
            let added = add(shown(ino), name, offset, generation);
            if learns && added == AddDirEntryResult::EntryAdded {
                numbers.record_lookup(parent, &text, &entry);
            }
            added
        });
        let list = self.library.readdir(library, fh, offset, learns, renumber);
        let listed = listing(library, answered, list).await;
        self.numbers.commit();
        listed
    }
}
