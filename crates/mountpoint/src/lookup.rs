//! What a name stands for, from one request. The library sends two: for an object of that name, and for a folder of it. A
//! listing of what begins with the name answers both, unless other names come before the folder and fill it: then the library
//! asks as ever.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::sync::Arc;

use async_lock::OnceCell;
use mountpoint_s3_client::types::ListObjectsResult;
use mountpoint_s3_fs::metablock::{InodeError, InodeNo, Lookup, Metablock};
use parking_lot::Mutex;
use thiserror::Error;

use crate::listed::list_answered;
use crate::scoped::scoped;

/// Keys of that listing. The object of the name is the first. The second is that of the folder, or comes after it, or is of a
/// name that goes on with a character before `/`: a blank, a dot or a dash, for example.
pub(crate) const KEYS: usize = 2;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Folder,
    Object,
    Nothing,
    /// The listing does not reach as far as the folder.
    Unknown,
}

/// Ends the library's lookup of an object, because its client cannot answer with what a listing says. The library learns of the
/// object as from a program's listing then.
#[derive(Debug, Error)]
#[error("the object is known from a listing")]
pub(crate) struct FoundInListing;

/// The name that the library is looking up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<State>);

#[derive(Debug, Default)]
struct State {
    named: OnceCell<Named>,
    /// The listing, reduced to the object.
    object: Mutex<Option<ListObjectsResult>>,
}

thread_local! {
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// While the library looks a name up, that name.
pub(crate) fn asked() -> Option<Asked> {
    ASKED.with_borrow(Clone::clone)
}

/// What the client answers for a folder of the name.
#[derive(Debug)]
pub(crate) enum OfFolder {
    Page(ListObjectsResult),
    /// There is none, and the library gets the object from [`look_up`].
    FoundObject,
    /// The server must say it.
    Unknown,
}

impl Asked {
    /// `page` lists what begins with the key; `None` if the server refuses to.
    pub(crate) async fn answer(&self, key: &str, page: Option<ListObjectsResult>) -> OfFolder {
        let folder = format!("{key}/");
        let named = page.as_ref().map_or(Named::Unknown, |page| {
            let objects = page.objects.iter().map(|object| object.key.as_str());
            let names = objects.chain(page.common_prefixes.iter().map(String::as_str));
            decide(key, &folder, names, page.next_continuation_token.is_none())
        });
        // It is set once.
        let _ = self.0.named.set(named).await;
        let Some(mut page) = page.filter(|_| named != Named::Unknown) else { return OfFolder::Unknown };
        page.next_continuation_token = None;
        page.objects.retain(|object| named == Named::Object && object.key == key);
        page.common_prefixes = if named == Named::Folder { vec![folder] } else { Vec::new() };
        if named == Named::Object {
            *self.0.object.lock() = Some(page);
            return OfFolder::FoundObject;
        }
        OfFolder::Page(page)
    }

    /// Waits for the listing.
    pub(crate) async fn named(&self) -> Named {
        *self.0.named.wait().await
    }

    fn take_object(&self) -> Option<ListObjectsResult> {
        self.0.object.lock().take()
    }
}

/// `names` are the keys and folders of a listing that is in order, and ends with them or with all that there are.
fn decide<'a>(key: &str, folder: &str, names: impl Iterator<Item = &'a str>, is_all: bool) -> Named {
    let (mut is_object, mut is_known) = (false, is_all);
    for name in names {
        if name.starts_with(folder) {
            return Named::Folder;
        }
        is_object |= name == key;
        is_known |= name > folder;
    }
    match (is_known, is_object) {
        (false, _) => Named::Unknown,
        (true, true) => Named::Object,
        (true, false) => Named::Nothing,
    }
}

/// Looks a name up, with one request if what the library knows is too old.
pub(crate) async fn look_up(
    library: &impl Metablock,
    folder: InodeNo,
    name: &OsStr,
) -> Result<Lookup, InodeError> {
    let asked = Asked::default();
    let found = scoped(&ASKED, &asked, library.lookup(folder, name)).await;
    let Some(object) = asked.take_object() else { return found };
    // If the folder is gone meanwhile, the library asks itself, and finds that out.
    if let Err(error) = list_answered(library, folder, object).await {
        tracing::debug!(%error, "cannot use the listing of an object; it is looked up again");
    }
    library.lookup(folder, name).await
}

/// Makes the library ask what the name of an inode stands for.
pub(crate) async fn look_up_again(
    library: &impl Metablock,
    folder: InodeNo,
    known: InodeNo,
) -> Result<(), InodeError> {
    let asked = Asked::default();
    let found = scoped(&ASKED, &asked, library.getattr(known, true)).await;
    match asked.take_object() {
        Some(object) => list_answered(library, folder, object).await,
        None => found.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], is_all: bool) -> Named {
        decide("a/name", "a/name/", names.iter().copied(), is_all)
    }

    #[test]
    fn a_listing_of_what_begins_with_a_name_says_what_it_stands_for() {
        for is_all in [true, false] {
            assert_eq!(named(&["a/name", "a/name0"], is_all), Named::Object, "no folder comes after it");
            assert_eq!(named(&["a/name", "a/name/"], is_all), Named::Folder, "which hides the object");
            assert_eq!(named(&["a/name-1/", "a/name/"], is_all), Named::Folder);
            assert_eq!(named(&["a/name0", "a/names/"], is_all), Named::Nothing);
            assert_eq!(named(&["a/name/"], is_all), Named::Folder);
        }
        assert_eq!(named(&[], true), Named::Nothing);
        assert_eq!(named(&["a/name"], true), Named::Object);
        assert_eq!(named(&["a/name-1", "a/name.txt"], true), Named::Nothing);
    }

    #[test]
    fn a_listing_that_ends_before_the_folder_does_not_say_it() {
        assert_eq!(named(&["a/name", "a/name-1"], false), Named::Unknown);
        assert_eq!(named(&["a/name 1/", "a/name.txt"], false), Named::Unknown);
        assert_eq!(named(&["a/name"], false), Named::Unknown);
        assert_eq!(named(&[], false), Named::Unknown, "servers may answer with less than they have");
    }
}
