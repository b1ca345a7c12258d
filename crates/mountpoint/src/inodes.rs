//! The library's inodes under numbers that outlive the process. What handles write and read is recorded, and a file that was
//! written here can be opened again to be continued, whatever else the mount's options allow.

mod directory;
mod metablock;
mod open_again;
mod rename;
pub(crate) mod repeated;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mountpoint_s3_client::types::ETag;
use mountpoint_s3_fs::fs::OpenFlags;
use mountpoint_s3_fs::metablock::{InodeError, InodeKind, InodeNo, InodeStat, Lookup, Metablock, NewHandle};
use parking_lot::{Mutex, MutexGuard};
use time::OffsetDateTime;

use crate::changes::Changes;
use crate::client::Client;
use crate::journal::Version;
use crate::listed::{Answer, Answered};
use crate::listings::renew;
use crate::lookup::look_up;
use crate::numbers::{Entry, Meaning, Numbers};
use crate::opening::confirm_name;
use crate::outdated::Outdated;
use crate::uploads::{ReadObject, Uploads};

pub(crate) struct Inodes<M> {
    library: M,
    uploads: Arc<Uploads>,
    client: Client,
    /// How long what is known about a file answers for other lookups. `None` if each of these asks the server.
    known_for: Option<Duration>,
    /// Whether it must be confirmed when the file is opened, because it is kept longer than the library would without
    /// `metadata-ttl`.
    confirms: bool,
    numbers: Arc<Numbers>,
    /// Directories that are being listed, by handle.
    listed: Mutex<HashMap<u64, Answered>>,
    outdated: Outdated,
    changes: Changes,
}

impl<M: Metablock> Inodes<M> {
    pub(crate) fn new(
        library: M,
        client: Client,
        known_for: Option<Duration>,
        confirms: bool,
        numbers: Arc<Numbers>,
    ) -> Self {
        let (uploads, listed, changes) = (client.uploads(), Mutex::default(), Changes::default());
        let outdated = Outdated::new(known_for.unwrap_or_default());
        Self { library, uploads, client, known_for, confirms, numbers, listed, outdated, changes }
    }

    fn listed(&self) -> MutexGuard<'_, HashMap<u64, Answered>> {
        self.listed.lock()
    }

    /// Renews what the library knows of a name if that is older than `known_for`, with a page of a listing where that costs less.
    async fn renew(&self, directory: InodeNo, name: &str, known_for: Duration) -> Result<(), InodeError> {
        let outdated = || self.outdated.listed_at(directory, name, Instant::now());
        let listed_at = outdated();
        let listings = self.client.listings();
        if let Some(due) = listings.and_then(|it| it.due(directory, name, known_for, listed_at)) {
            let learned = |name: &str, answered: &Answered| {
                self.note_listed(directory, name, answered);
            };
            if let Err(error) = renew(&self.library, due, learned).await {
                tracing::debug!(%error, "cannot list the folder again; names are looked up one by one");
            }
        }
        if listed_at.is_some() && outdated().is_some() {
            confirm_name(&self.library, directory, name.as_ref()).await?;
            self.outdated.clear(directory, name);
        }
        Ok(())
    }

    /// With one request where the library would send two, if it keeps what it learns by that.
    async fn look_up(&self, directory: InodeNo, name: &OsStr) -> Result<Lookup, InodeError> {
        match self.known_for {
            Some(_) => look_up(&self.library, directory, name).await,
            None => self.library.lookup(directory, name).await,
        }
    }

    /// The library has learned of a name from the answer to a listing. Returns how long that may be believed, if not as long
    /// as the library says.
    fn note_listed(&self, folder: InodeNo, name: &str, answered: &Answered) -> Option<Duration> {
        let Answer { asked, answered, prefix } = answered.get().filter(|_| self.known_for.is_some())?;
        let has_changed = self.changes.is_changed_since(&format!("{prefix}{name}"), asked);
        Some(self.outdated.note(folder, name, answered, has_changed, Instant::now()))
    }

    /// The flags with which the library asks the server, whatever it knows.
    fn asking(&self, flags: OpenFlags) -> OpenFlags {
        if self.confirms { flags | OpenFlags::O_DIRECT } else { flags }
    }

    /// The library's number of an inode that the kernel knows.
    async fn number(&self, ino: InodeNo) -> Result<InodeNo, InodeError> {
        // The kernel has learned of each directory before what is in it, so that this ends at one that the library knows.
        let mut unknown = Vec::new();
        let mut number = ino;
        let mut library = loop {
            match self.numbers.meaning(number) {
                Meaning::Known(library) => break library,
                Meaning::Named { parent, node } => {
                    unknown.push((std::mem::replace(&mut number, parent), node))
                }
                Meaning::Stale => return Err(stale(ino)),
            }
        };
        while let Some((number, node)) = unknown.pop() {
            let kind = if node.is_directory { InodeKind::Directory } else { InodeKind::File };
            let name = OsStr::new(&node.name);
            let found = match self.library.lookup(library, name).await {
                // Nothing in the bucket stands for it yet.
                Err(InodeError::FileDoesNotExist(..)) if node.is_local => {
                    match self.library.create(library, name, kind).await {
                        // By another request meanwhile.
                        Err(InodeError::FileAlreadyExists(_)) => self.library.lookup(library, name).await?,
                        created => created?,
                    }
                }
                found => found.map_err(|error| gone(error, ino))?,
            };
            if !self.numbers.find(number, &entry(&found, false)) {
                self.library.forget(found.ino(), 1).await;
                return Err(stale(ino));
            }
            library = found.ino();
        }
        Ok(library)
    }

    /// What a predecessor had created in a directory and the bucket does not have yet: all of it, or what has this name.
    async fn remake_locals(&self, parent: InodeNo, name: Option<&OsStr>) {
        for ino in self.numbers.unknown_locals(parent, name) {
            // If it cannot be made, the bucket decides what the directory has.
            let _ = self.number(ino).await;
        }
    }

    /// The kernel is about to get what was found.
    fn record_lookup(&self, parent: InodeNo, name: &OsStr, found: &Lookup, is_local: bool) -> Lookup {
        // The library has found it, so that it is UTF-8.
        let ino = self.numbers.record_lookup(parent, &name.to_string_lossy(), &entry(found, is_local));
        self.numbers.commit();
        renumbered(found, ino)
    }

    /// Records it at once. Opening a file that waits to be published makes the library publish it before the open returns,
    /// and if this process died in between, a successor would publish it a second time.
    fn note_published(&self, fh: u64, etag: ETag) {
        let file = self.uploads.publish(fh, etag);
        let Some(object) = self.uploads.published(fh) else { return };
        if let Some((file, length)) = file {
            self.numbers.record(&object.record(file, length));
        }
        self.changes.note(object.key, Instant::now());
    }

    fn note_writer(
        &self,
        ino: InodeNo,
        fh: u64,
        handle: NewHandle,
        creates: bool,
    ) -> Result<NewHandle, InodeError> {
        let location = handle.lookup.s3_location()?;
        let replaces = Version::of(handle.lookup.stat().etag.as_deref());
        self.uploads.begin(fh, ino, location.bucket_name(), location.full_key().as_ref(), creates, replaces);
        Ok(renumbered_handle(handle, ino))
    }
}

fn entry(found: &Lookup, is_local: bool) -> Entry {
    entry_of(found.ino(), found.kind(), found.stat(), is_local)
}

fn entry_of(library: InodeNo, kind: InodeKind, stat: &InodeStat, is_local: bool) -> Entry {
    let version = Version::of(stat.etag.as_deref());
    Entry { library, is_directory: kind == InodeKind::Directory, version, is_local }
}

/// `None` if the bucket has no object for the file yet.
fn read_object(found: &Lookup) -> Option<ReadObject> {
    let InodeStat { etag, size, .. } = found.stat();
    let key = found.s3_location().ok()?.full_key().to_string();
    Some(ReadObject { key, etag: ETag::from(etag.as_deref()?.to_owned()), length: *size as u64 })
}

fn renumbered(found: &Lookup, ino: InodeNo) -> Lookup {
    Lookup::new(ino, found.stat().clone(), found.kind(), found.s3_location().ok().cloned())
}

fn renumbered_handle(handle: NewHandle, ino: InodeNo) -> NewHandle {
    NewHandle { lookup: renumbered(&handle.lookup, ino), ..handle }
}

/// The kernel asks about a file that it holds, not about a name. If it is gone, "no such file" would be the answer for the
/// root of a bind mount, too: the kubelet would take the mount of a removed `subPath` for absent, never unmount it, and the
/// pod would never end. With a stale file, it unmounts, and a program that asks by name looks the name up again.
fn gone(error: InodeError, ino: InodeNo) -> InodeError {
    match error {
        InodeError::InodeDoesNotExist(_) | InodeError::FileDoesNotExist(..) => stale(ino),
        error => error,
    }
}

fn stale(ino: InodeNo) -> InodeError {
    let stat = InodeStat::for_directory(OffsetDateTime::UNIX_EPOCH, std::time::Duration::ZERO);
    let inode = Lookup::new(ino, stat, InodeKind::Directory, None).inode_err();
    InodeError::StaleInode { remote_key: String::new(), old_inode: inode.clone(), new_inode: inode }
}
