//! Open files, as the model knows them.

/// Of a file that replaces an object, and was closed before anything was written: the old content stays until the next close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    No,
    Yes,
    /// Others have used the file meanwhile: their opening it may have completed its upload.
    Perhaps,
}

#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) content: Vec<u8>,
    /// There was no object when it was opened.
    pub(super) creates: bool,
    /// How much of the content an object has become.
    pub(super) published: Option<usize>,
    pub(super) waiting: Waiting,
    pub(super) failed: bool,
}

impl Writer {
    pub(super) fn is_due(&self) -> bool {
        !self.failed && self.published != Some(self.content.len())
    }

    /// A write has failed, and so has the upload that it belongs to, if there is one.
    pub(super) fn fail(&mut self) {
        self.failed |= self.is_due() && self.waiting != Waiting::Perhaps;
    }

    pub(super) fn waits(&self) -> bool {
        self.waiting != Waiting::No
    }

    /// Whether the next close leaves the old content.
    pub(super) fn begins_to_wait(&self) -> bool {
        self.is_due() && self.content.is_empty() && !self.creates && !self.waits()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// What it may have read: the object as it was opened, and what became of the file here since.
    Reader {
        contents: Vec<Vec<u8>>,
        is_idle: bool,
    },
    Writer(Writer),
}

#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) name: String,
    /// One for each descriptor.
    pub(super) holders: Vec<usize>,
    pub(super) kind: Kind,
}
