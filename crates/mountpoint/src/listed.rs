//! A listing through the library, which learns of the names on its pages. What is listed accompanies the call, because the
//! library's arguments have no room for it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use mountpoint_s3_client::types::ListObjectsResult;
use mountpoint_s3_fs::metablock::{AddDirEntryResult, InodeError, Metablock};
use parking_lot::Mutex;

use crate::scoped::scoped;

/// The folder that is being listed.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    folder: u64,
    part: Part,
    answered: Answered,
}

/// What is listed of a folder.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Everything,
    /// The page with this continuation token.
    Page(Option<String>),
    /// This name.
    Name(String),
    /// What the server has answered before.
    Answered(Arc<Mutex<Option<ListObjectsResult>>>),
}

/// The answer whose entries a listing returns, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<Option<Answer>>>);

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    /// The prefix of the keys.
    pub(crate) prefix: Arc<str>,
}

impl Answered {
    pub(crate) fn get(&self) -> Option<Answer> {
        self.0.lock().clone()
    }

    fn set(&self, answer: Answer) {
        *self.0.lock() = Some(answer);
    }
}

thread_local! {
    static LISTED: RefCell<Option<Listed>> = const { RefCell::new(None) };
}

/// Lists a folder through the library.
pub(crate) async fn listing<T>(folder: u64, answered: Answered, list: impl Future<Output = T>) -> T {
    scoped(&LISTED, &Listed { folder, part: Part::Everything, answered }, list).await
}

/// Inside of [`listing`], the folder.
pub(crate) fn listed() -> Option<Listed> {
    LISTED.with_borrow(Clone::clone)
}

impl Listed {
    /// The token of the request, where the library wants the page of another one or the first.
    pub(crate) fn token<'a>(&'a self, wanted: Option<&'a str>) -> Option<&'a str> {
        let Part::Page(token) = &self.part else { return wanted };
        wanted.or(token.as_deref())
    }

    /// The prefix of the keys that are asked for, of those with the prefix of the folder.
    pub(crate) fn prefix<'a>(&self, folder: &'a str) -> Cow<'a, str> {
        match &self.part {
            Part::Name(name) => Cow::Owned(format!("{folder}{name}")),
            Part::Everything | Part::Page(_) | Part::Answered(_) => Cow::Borrowed(folder),
        }
    }

    /// Of what begins with a name, the name itself is the first.
    pub(crate) fn max_keys(&self, wanted: usize) -> usize {
        if matches!(self.part, Part::Name(_)) { 1 } else { wanted }
    }

    /// The library must not ask for the page after this one.
    pub(crate) fn is_one_page(&self) -> bool {
        !matches!(self.part, Part::Everything)
    }

    /// Whether the server has said that the folder exists, by what it has listed of it. The library asks for the folder and its
    /// parent if it does not know them any more.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.part, Part::Answered(_))
    }

    /// What the server has answered before, once.
    pub(crate) fn take_answer(&self) -> Option<ListObjectsResult> {
        let Part::Answered(answer) = &self.part else { return None };
        answer.lock().take()
    }

    /// The folder, if what is listed are its pages, and not a name.
    pub(crate) fn folder_of_pages(&self) -> Option<u64> {
        matches!(self.part, Part::Everything | Part::Page(_)).then_some(self.folder)
    }

    pub(crate) fn note_answer(&self, asked: Instant, prefix: &str) {
        self.answered.set(Answer { asked, answered: Instant::now(), prefix: prefix.into() });
    }
}

/// Makes the library learn of a name that it takes for missing.
pub(crate) async fn list_name(library: &impl Metablock, folder: u64, name: &str) -> Result<(), InodeError> {
    list_part(library, folder, Part::Name(name.to_owned()), |_, _| {}).await
}

/// Makes the library learn what the server has answered already.
pub(crate) async fn list_answered(
    library: &impl Metablock,
    folder: u64,
    answer: ListObjectsResult,
) -> Result<(), InodeError> {
    let part = Part::Answered(Arc::new(Mutex::new(Some(answer))));
    list_part(library, folder, part, |_, _| {}).await
}

pub(crate) async fn list_part(
    library: &impl Metablock,
    folder: u64,
    part: Part,
    learned: impl Fn(&str, &Answered) + Send + Sync,
) -> Result<(), InodeError> {
    let handle = library.new_readdir_handle(folder).await?;
    let listed = Listed { folder, part, answered: Answered::default() };
    let learn = Box::new(|_, name: OsString, _, _| {
        learned(&name.to_string_lossy(), &listed.answered);
        AddDirEntryResult::EntryAdded
    });
    let list = library.readdir(folder, handle, 0, false, learn);
    let done = scoped(&LISTED, &listed, list).await;
    library.releasedir(handle).await?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_lists_page_after_page_and_a_page_alone_ends_with_itself() {
        let listed = |part| Listed { folder: 1, part, answered: Answered::default() };
        let everything = listed(Part::Everything);
        assert_eq!(everything.token(Some("next")), Some("next"));
        assert!(everything.token(None).is_none() && !everything.is_one_page());
        let one = listed(Part::Page(Some("this".into())));
        assert!(one.token(None) == Some("this") && one.prefix("folder/") == "folder/" && one.is_one_page());
        let name = listed(Part::Name("new".into()));
        assert!(name.token(None).is_none() && name.prefix("folder/") == "folder/new" && name.is_one_page());
    }
}
