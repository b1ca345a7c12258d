//! What an open file has written so far, so that it can be uploaded again: when it is continued after a close, and by the
//! successor of a mount process that died. Large files are not kept: those that were closed are read back from the server.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};

/// At most this many bytes are kept of one file: more than scripts write, and little compared with the buffers of an upload.
const PER_FILE: u64 = 8 * 1024 * 1024;
/// The names of spools begin with it. The number of the open file follows.
const PREFIX: &str = "spool-";
/// Bytes read from a spool at a time.
pub(super) const PIECE: usize = 1024 * 1024;

/// All spools of the mount.
#[derive(Debug)]
pub(crate) struct Spools {
    /// In memory, and shared with the next mount process. `None` if there will be none.
    folder: Option<PathBuf>,
    /// Bytes that they may still take.
    budget: AtomicU64,
}

impl Spools {
    pub(crate) fn new(folder: Option<PathBuf>, bytes: u64) -> Arc<Self> {
        Arc::new(Self { folder, budget: AtomicU64::new(bytes) })
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| left.checked_sub(bytes);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Takes these bytes, or what is left of the budget if that is less. Returns how many it took.
    fn take_at_most(&self, bytes: u64) -> u64 {
        let taken = |left: u64| Some(left.saturating_sub(bytes));
        let left = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        left.unwrap_or_default().min(bytes)
    }

    fn give_back(&self, bytes: u64) {
        self.budget.fetch_add(bytes, Ordering::Relaxed);
    }

    fn path(&self, handle: u64) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{PREFIX}{handle}")))
    }

    /// Removes what predecessors have left of files that are no longer open.
    pub(super) fn keep_only(&self, handles: &[u64]) {
        let entries = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let handle = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            if handle.is_some_and(|handle| !handles.contains(&handle)) {
                // If it cannot be removed, it takes memory and does no other harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Spool {
    spools: Arc<Spools>,
    handle: u64,
    content: Content,
    length: u64,
    /// Bytes of the budget. Less than the length if a predecessor had a larger budget.
    taken: u64,
}

#[derive(Debug)]
enum Content {
    Nothing,
    Kept(File),
    /// The file has become too large to be kept.
    Dropped,
}

impl Spool {
    pub(super) fn new(spools: Arc<Spools>, handle: u64) -> Self {
        Self { spools, handle, content: Content::Nothing, length: 0, taken: 0 }
    }

    /// What a predecessor has left. If that cannot be opened, it is not known what a program has written.
    pub(super) fn inherit(spools: Arc<Spools>, handle: u64) -> io::Result<Self> {
        let open = |path: PathBuf| File::options().read(true).write(true).open(path);
        let found = match spools.path(handle).map(open) {
            None => None,
            // Nothing was written.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(opened) => {
                let file = opened?;
                Some((file.metadata()?.len(), file))
            }
        };
        let mut spool = Self::new(spools, handle);
        if let Some((length, file)) = found {
            // The spool is kept even if it exceeds the budget, because its bytes are in memory already.
            spool.taken = spool.spools.take_at_most(length);
            (spool.content, spool.length) = (Content::Kept(file), length);
        }
        Ok(spool)
    }

    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.content, Content::Dropped)
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// `false` if it cannot be kept. What was kept before stays until the spool is given up.
    pub(super) fn append(&mut self, content: &[u8]) -> bool {
        let bytes = content.len() as u64;
        if !self.is_kept() || self.length + bytes > PER_FILE || !self.spools.take(bytes) {
            return false;
        }
        self.length += bytes;
        self.taken += bytes;
        let written = self.write(content);
        written.inspect_err(|error| tracing::warn!(%error, "cannot keep what is written to a file")).is_ok()
    }

    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let offset = self.length - content.len() as u64;
        if matches!(self.content, Content::Nothing) {
            self.content = Content::Kept(self.create()?);
        }
        match &self.content {
            Content::Kept(file) => file.write_all_at(content, offset),
            Content::Nothing | Content::Dropped => Ok(()),
        }
    }

    fn create(&self) -> io::Result<File> {
        match self.spools.path(self.handle) {
            Some(path) => File::options().read(true).write(true).create(true).truncate(true).open(path),
            None => Ok(memfd_create("spool", MemfdFlags::CLOEXEC)?.into()),
        }
    }

    /// The next bytes from this offset on; none at the end.
    pub(super) fn read(&self, offset: u64, at_most: usize) -> io::Result<Vec<u8>> {
        let Content::Kept(file) = &self.content else { return Ok(Vec::new()) };
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut piece = vec![0; left.min(at_most)];
        file.read_exact_at(&mut piece, offset)?;
        Ok(piece)
    }

    /// Whether these bytes are in it at this offset.
    pub(super) fn has(&self, offset: u64, part: &[u8]) -> io::Result<bool> {
        let Content::Kept(file) = &self.content else { return Ok(part.is_empty()) };
        let mut kept = vec![0; part.len()];
        file.read_exact_at(&mut kept, offset)?;
        Ok(kept == part)
    }

    /// The file cannot be repeated from now on.
    pub(super) fn give_up(&mut self) {
        if let Content::Dropped = std::mem::replace(&mut self.content, Content::Dropped) {
            return;
        }
        self.length = 0;
        self.spools.give_back(std::mem::take(&mut self.taken));
        if let Some(path) = self.spools.path(self.handle) {
            // There may be none yet.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests;
