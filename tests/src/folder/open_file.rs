//! Open files, as the model knows them.

#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) content: Vec<u8>,
    /// There was no object when it was opened.
    pub(super) creates: bool,
    /// How much of the content an object has become.
    pub(super) published: Option<usize>,
    /// It replaces an object, and was closed before anything was written: the old content stays until the next close.
    pub(super) waits: bool,
    pub(super) failed: bool,
}

impl Writer {
    pub(super) fn is_due(&self) -> bool {
        !self.failed && self.published != Some(self.content.len())
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
