//! The archive, written as it is collected: the logs of a large cluster do not fit in memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::PluginError;

/// All that is inside is in this folder.
const FOLDER: &str = "s3-csi-support";
/// Readable by its owner alone: it says much about a cluster.
const MODE: u32 = 0o600;

pub struct Archive<W: Write = File> {
    path: PathBuf,
    tar: tar::Builder<W>,
    /// Seconds since 1970.
    time: u64,
    files: usize,
}

impl Archive {
    /// A file that exists may be another bundle, and stays.
    pub fn create(path: &Path, time: i64) -> Result<Self, PluginError> {
        let file = File::options().write(true).create_new(true).mode(MODE).open(path);
        let file = file.map_err(|error| PluginError::Write { path: path.to_owned(), error })?;
        Ok(Self::new(path, file, time))
    }
}

impl<W: Write> Archive<W> {
    fn new(path: &Path, writer: W, time: i64) -> Self {
        Self { path: path.to_owned(), tar: tar::Builder::new(writer), time: time.unsigned_abs(), files: 0 }
    }

    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> Result<(), PluginError> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(self.time);
        let added = self.tar.append_data(&mut header, Path::new(FOLDER).join(name), content);
        self.files += 1;
        added.map_err(|error| self.failed(error))
    }

    /// How many files it has.
    pub fn finish(mut self) -> Result<usize, PluginError> {
        let ended = self.tar.finish().and_then(|()| self.tar.get_mut().flush());
        ended.map(|()| self.files).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> PluginError {
        PluginError::Write { path: self.path.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read as _;

    #[test]
    fn an_archive_holds_what_was_packed() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(Path::new("x"), &mut bytes, 1);
        archive.add("logs/a/b.log", b"said").unwrap();
        archive.add("x.json", b"{}").unwrap();
        assert_eq!(archive.finish().unwrap(), 2);
        let mut read = tar::Archive::new(bytes.as_slice());
        let mut found = BTreeMap::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            found.insert(name, content);
        }
        let expected = [("s3-csi-support/logs/a/b.log", "said"), ("s3-csi-support/x.json", "{}")];
        assert_eq!(found, expected.map(|(name, content)| (name.to_owned(), content.to_owned())).into());
    }
}
