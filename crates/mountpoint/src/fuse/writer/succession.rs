//! What becomes of a file that was open for writing when a mount process died.

use std::io;

use mountpoint_s3_client::types::HeadObjectResult;
use mountpoint_s3_fs::fs::OpenFlags;

use super::resumption::replay;
use super::{Spool, State, Upload, Writer};
use crate::fuse::failure::Failure;
use crate::fuse::storage::Storage;
use crate::journal::{self, Version};
use crate::reopen::{Again, again};
use crate::uploads::Published;

impl Writer {
    /// The writer of a file of which nothing is lost so far, unless what it had written cannot be opened.
    pub(in crate::fuse) fn inherit(
        storage: &Storage,
        handle: u64,
        known: &journal::Handle,
    ) -> io::Result<Self> {
        let mut spool = Spool::inherit(storage.spools.clone(), handle)?;
        let published = known.published.as_ref();
        let object = published.map(|object| Published {
            bucket: object.bucket.clone(),
            key: object.key.clone(),
            etag: object.etag.as_str().into(),
        });
        if let Some(completion) = known.to_complete() {
            // It has nothing, or not everything.
            spool.give_up();
            let (length, upload) = (completion.length, Upload::Completing(Box::new(completion.clone())));
            let state = State { upload, length, copied: 0, closed_empty: false, spool, unspooled: true };
            return Ok(Self::with(handle, &known.open, state, true));
        }
        let (length, upload) = match (published, object) {
            (Some(known), Some(object)) if spool.length() <= known.length => {
                if spool.length() < known.length {
                    spool.give_up();
                }
                (known.length, Upload::Published(None, object))
            }
            (_, object) => (spool.length(), Upload::Interrupted(object)),
        };
        let state = State { upload, length, copied: 0, closed_empty: known.is_idle, spool, unspooled: false };
        Ok(Self::with(handle, &known.open, state, true))
    }

    /// So that the library knows of it, if a predecessor had opened it.
    pub(in crate::fuse) async fn reopen(&self, storage: &Storage) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        self.repeat(storage, &mut state).await
    }

    /// The file is no longer open in any program. If none has written to it, what another client has put there meanwhile must
    /// stay, also if the file was opened again before that was known.
    pub(super) async fn repeat_for_the_last_time(
        &self,
        storage: &Storage,
        state: &mut State,
    ) -> Result<(), Failure> {
        let is_unpublished = matches!(state.upload, Upload::Interrupted(_) | Upload::Open(_));
        if !self.is_inherited || !is_unpublished || state.length > 0 {
            return self.repeat(storage, state).await;
        }
        let found = storage.head(&self.key).await;
        let is_ours = |found: &Option<HeadObjectResult>| {
            found.as_ref().is_none_or(|found| !self.is_of_another_client(found.etag.as_str()))
        };
        if found.as_ref().is_ok_and(is_ours) {
            return self.repeat(storage, state).await;
        }
        // Also if it is not known what there is: an object that stays does less harm than one that is emptied.
        if let Upload::Open(upload) = state.upload {
            self.abort(storage, upload).await;
        }
        found?;
        tracing::info!(
            key = self.key,
            "another client has replaced a file that was to be emptied, which stays"
        );
        Ok(())
    }

    /// Whether the object came after the file was opened. The journal of an older version does not say what there was.
    fn is_of_another_client(&self, etag: &str) -> bool {
        let is_recorded = self.creates || self.replaces != Version::default();
        is_recorded && Version::of(Some(etag)) != self.replaces
    }

    /// Does again what a mount process had done that died before it was published, if one has.
    pub(super) async fn repeat(&self, storage: &Storage, state: &mut State) -> Result<(), Failure> {
        let Upload::Interrupted(replaces) = &state.upload else { return self.finish(storage, state).await };
        let replaces = replaces.clone();
        let found = storage.head(&self.key).await?;
        // An empty object may have been there before.
        if let Some(found) = &found
            && (self.creates || state.length > 0)
            && storage.holds(found, &self.key, &state.spool).await?
        {
            tracing::info!(
                key = self.key,
                "a mount process died after the upload of a file, which is complete"
            );
            self.note_complete(storage, state, &found.etag);
            return Ok(());
        }
        tracing::info!(
            key = self.key,
            bytes = state.length,
            "a mount process died during the upload of a file, which is repeated"
        );
        match (replaces, found) {
            (Some(object), Some(found)) if found.etag == object.etag => {
                self.resume(storage, state, &object).await?;
            }
            (Some(_), _) => return Err(Failure::Replaced),
            (None, found) => {
                let truncate = if found.is_some() { OpenFlags::O_TRUNC } else { OpenFlags::empty() };
                let open = storage.files.open(self.ino, self.flags | truncate, self.opened_by);
                let upload = again(&Again::Repeated { creates: self.creates }, open).await?.fh;
                (state.upload, state.copied) = (Upload::Open(upload), 0);
                storage.uploads.has_bytes_of(upload, self.handle, state.length);
                let replayed = replay(storage, self.ino, upload, &state.spool).await;
                self.abort_unless(storage, state, upload, replayed).await?;
                if state.closed_empty && state.length == 0 {
                    storage.files.flush(self.ino, upload, 0, self.opened_by).await?;
                }
            }
        }
        Ok(())
    }
}

impl State {
    /// How many of these bytes are in the spool already.
    pub(super) fn kept(&self, offset: i64, content: &[u8]) -> Result<usize, Failure> {
        let Some(offset) = u64::try_from(offset).ok().filter(|offset| *offset < self.spool.length()) else {
            return Ok(0);
        };
        let kept = usize::try_from(self.spool.length() - offset).unwrap_or(usize::MAX).min(content.len());
        let is_same = self.spool.has(offset, &content[..kept]);
        Ok(if is_same.map_err(|error| Failure::Spool(error.to_string()))? { kept } else { 0 })
    }
}
