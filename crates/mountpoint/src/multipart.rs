//! Multipart uploads that have begun and not ended. On the server they take space until they are aborted, so the journal knows
//! them for a successor, which also completes those that were being completed. The S3 client does not return the id of an
//! upload, but the path of each request contains it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mountpoint_s3_crt::s3::client::{RequestMetrics, RequestType};
use parking_lot::Mutex;

use crate::journal::{Completion, Journal, Record};

#[derive(Debug)]
pub(crate) struct Unfinished {
    journal: Arc<Journal>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    uploads: BTreeSet<String>,
    /// By the path of the object.
    watched: HashMap<String, Watched>,
    last: u64,
}

/// What was found of the upload to an object.
#[derive(Debug, Default)]
struct Watched {
    number: u64,
    /// Those to the object that were found since. Of more than one, it is not known which one it is.
    found: Vec<String>,
    /// The open file, and what is recorded of it when its upload is found.
    completing: Option<(u64, Completion)>,
}

/// Looks out for the upload to an object, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    unfinished: Arc<Unfinished>,
    object: String,
    /// Once it has begun.
    number: Option<u64>,
}

impl Unfinished {
    /// With those that a predecessor has left.
    pub(crate) fn new(journal: Arc<Journal>, left: BTreeSet<String>) -> Arc<Self> {
        let state = State { uploads: left, ..State::default() };
        Arc::new(Self { journal, state: Mutex::new(state) })
    }

    /// The server knows an upload, and has nothing of it yet.
    pub(crate) fn begun(&self, upload: &str) {
        let mut state = self.state.lock();
        if !state.uploads.insert(upload.to_owned()) {
            return;
        }
        self.journal.record(&Record::UploadBegun(upload.to_owned()));
        let object = upload.split_once('?').map_or(upload, |(object, _)| object);
        if let Some(watched) = state.watched.get_mut(object) {
            watched.found.push(upload.to_owned());
            watched.record(&self.journal);
        }
    }

    /// It was completed or aborted.
    pub(crate) fn ended(&self, upload: &str) {
        self.state.lock().uploads.remove(upload);
        self.journal.record(&Record::UploadEnded(upload.to_owned()));
    }

    /// An attempt at a request to S3 has ended.
    pub(crate) fn attempted(&self, attempt: &RequestMetrics) {
        let note = match attempt.request_type() {
            RequestType::UploadPart | RequestType::UploadPartCopy => Self::begun,
            // At worst a successor aborts an upload that has already ended.
            RequestType::CompleteMultipartUpload | RequestType::AbortMultipartUpload
                if attempt.status_code().is_some_and(|status| (200..300).contains(&status)) =>
            {
                Self::ended
            }
            _ => return,
        };
        if let Some(upload) = attempt.request_path_query().as_deref().and_then(upload) {
            note(self, &upload);
        }
    }
}

impl Watched {
    fn record(&self, journal: &Journal) {
        if let (Some((file, completion)), [upload]) = (&self.completing, &*self.found) {
            let completion = Completion { upload: upload.clone(), ..completion.clone() };
            journal.record(&Record::Completing(*file, Box::new(completion)));
        }
    }
}

impl Watch {
    pub(crate) fn new(unfinished: Arc<Unfinished>, object: String) -> Self {
        Self { unfinished, object, number: None }
    }

    /// Nothing was sent yet: what the server has for the object from now on belongs to this upload. The library has one writer
    /// for each key at a time.
    pub(crate) fn begin(&mut self) {
        let mut state = self.unfinished.state.lock();
        state.last += 1;
        let number = state.last;
        state.watched.insert(self.object.clone(), Watched { number, ..Watched::default() });
        self.number = Some(number);
    }

    /// Everything that was written to the open file was handed to the upload, which is completed now.
    pub(crate) fn completing(&self, file: u64, completion: Completion) {
        let mut state = self.unfinished.state.lock();
        let watched = state.watched.get_mut(&self.object);
        if let Some(watched) = watched.filter(|watched| Some(watched.number) == self.number) {
            watched.completing = Some((file, completion));
            watched.record(&self.unfinished.journal);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.unfinished.state.lock();
        if state.watched.get(&self.object).is_some_and(|watched| Some(watched.number) == self.number) {
            state.watched.remove(&self.object);
        }
    }
}

/// The path of the upload that a request was about.
fn upload(request: &str) -> Option<String> {
    let (object, query) = request.split_once('?')?;
    let id = query.split('&').find(|parameter| parameter.starts_with("uploadId="))?;
    Some(format!("{object}?{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Access, Begin, Open};

    #[test]
    fn the_path_of_an_upload_is_that_of_its_parts_without_their_numbers() {
        let of = |request: &str| upload(request).unwrap_or_default();
        assert_eq!(of("/bucket/a%20b?partNumber=3&uploadId=Id%2B1"), "/bucket/a%20b?uploadId=Id%2B1");
        assert_eq!(of("/key?uploadId=2&x-id=UploadPart"), "/key?uploadId=2");
        assert_eq!((of("/bucket/key?uploads"), of("/bucket/key")), (String::new(), String::new()));
    }

    /// Which upload is recorded as the one that the open file 1 is completed with, after `act` has found some.
    fn recorded(act: impl Fn(&Arc<Unfinished>, &mut Watch)) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(Journal::open(folder.path()).unwrap().0);
        journal.begin(Begin::default()).unwrap();
        let open = Open { access: Access::Write, ..Open::new(2, 0, 0, 8) };
        journal.record(&Record::Opened(1, open));
        journal.record(&Record::Unspooled(1));
        let unfinished = Unfinished::new(Arc::clone(&journal), ["/key?uploadId=old".to_owned()].into());
        let mut watch = Watch::new(Arc::clone(&unfinished), "/key".to_owned());
        watch.begin();
        act(&unfinished, &mut watch);
        let known = Journal::open(folder.path()).unwrap().1.unwrap();
        known.handles[&1].to_complete().map(|completion| completion.upload.clone())
    }

    #[test]
    fn the_upload_of_a_file_is_the_only_one_that_was_found_since_it_began() {
        let complete = |watch: &Watch| watch.completing(1, Completion::default());
        let one = Some("/key?uploadId=1".to_owned());
        let found_before = recorded(|unfinished, watch| {
            unfinished.begun("/key?uploadId=old");
            unfinished.begun("/key?uploadId=1");
            unfinished.begun("/key?uploadId=1");
            unfinished.begun("/other?uploadId=2");
            complete(watch);
        });
        assert_eq!(found_before, one);
        let found_later = recorded(|unfinished, watch| {
            complete(watch);
            unfinished.begun("/key?uploadId=1");
        });
        assert_eq!(found_later, one);
        let not_found = recorded(|unfinished, watch| {
            unfinished.begun("/key?uploadId=old");
            complete(watch);
        });
        assert_eq!(not_found, None, "it is one that a predecessor has left");
        let ambiguous = recorded(|unfinished, watch| {
            unfinished.begun("/key?uploadId=1");
            unfinished.begun("/key?uploadId=2");
            complete(watch);
        });
        assert_eq!(ambiguous, None);
        let replaced = recorded(|unfinished, watch| {
            let mut next = Watch::new(Arc::clone(unfinished), "/key".to_owned());
            next.begin();
            unfinished.begun("/key?uploadId=1");
            complete(watch);
        });
        assert_eq!(replaced, None, "the upload is that of another writer");
    }
}
