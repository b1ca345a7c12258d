//! What an open file has written so far, so that it can be uploaded again when it is continued after a close. Large files are
//! not kept: they are read back from the server instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes kept of one file, at most: more than what scripts write, and little beside the buffers of an upload.
const PER_FILE: u64 = 8 * 1024 * 1024;
/// Small writes are put together up to this many bytes, because every piece has its overhead.
const PIECE: usize = 64 * 1024;

/// Bytes that all spools of the process may still take.
#[derive(Debug)]
pub(crate) struct SpoolBudget(AtomicU64);

impl SpoolBudget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(bytes)))
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Spool {
    /// `None` when the file has become too large to be kept.
    pieces: Option<Vec<Vec<u8>>>,
    length: u64,
    budget: Arc<SpoolBudget>,
}

impl Spool {
    pub(super) fn new(budget: Arc<SpoolBudget>) -> Self {
        Self { pieces: Some(Vec::new()), length: 0, budget }
    }

    pub(super) fn append(&mut self, content: Vec<u8>) {
        let Some(pieces) = &mut self.pieces else { return };
        let bytes = content.len() as u64;
        if self.length + bytes > PER_FILE || !self.budget.take(bytes) {
            self.pieces = None;
            self.budget.give_back(std::mem::take(&mut self.length));
            return;
        }
        self.length += bytes;
        match pieces.last_mut() {
            Some(last) if last.len() + content.len() <= PIECE => last.extend_from_slice(&content),
            _ => pieces.push(content),
        }
    }

    /// All that was appended, unless it was too much.
    pub(super) fn pieces(&self) -> Option<&[Vec<u8>]> {
        self.pieces.as_deref()
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.budget.give_back(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(budget: &SpoolBudget) -> u64 {
        budget.0.load(Ordering::Relaxed)
    }

    #[test]
    fn what_was_written_is_kept_in_order() {
        let budget = SpoolBudget::new(PER_FILE);
        let mut spool = Spool::new(Arc::clone(&budget));
        let mut expected = Vec::new();
        for (number, size) in (0_u8..).zip([1, 10, PIECE - 11, 1, PIECE, 3 * PIECE, 5]) {
            spool.append(vec![number; size]);
            expected.extend(vec![number; size]);
        }
        assert_eq!(spool.pieces().unwrap().concat(), expected);
        assert_eq!(spool.pieces().unwrap().len(), 5);
        assert_eq!(left(&budget), PER_FILE - expected.len() as u64);
        drop(spool);
        assert_eq!(left(&budget), PER_FILE);
    }

    #[test]
    fn a_file_that_is_too_large_is_not_kept() {
        let budget = SpoolBudget::new(PER_FILE * 2);
        let mut spool = Spool::new(Arc::clone(&budget));
        spool.append(vec![0; usize::try_from(PER_FILE).unwrap()]);
        assert!(spool.pieces().is_some());
        spool.append(vec![0]);
        assert!(spool.pieces().is_none());
        assert_eq!(left(&budget), PER_FILE * 2);
        spool.append(vec![0]);
        assert!(spool.pieces().is_none(), "its beginning is gone");
    }

    #[test]
    fn all_files_share_a_budget() {
        let budget = SpoolBudget::new(10);
        let (mut first, mut second) = (Spool::new(Arc::clone(&budget)), Spool::new(Arc::clone(&budget)));
        first.append(vec![0; 6]);
        second.append(vec![0; 6]);
        assert!(first.pieces().is_some() && second.pieces().is_none());
        drop(first);
        assert_eq!(left(&budget), 10);
    }
}
