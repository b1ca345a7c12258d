//! A pipe as lines, read without blocking.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The longest line, in bytes; what is longer is cut, as a line without end must not use up the memory.
const MAX_LINE: usize = 16 * 1024;
/// Read at once at most, in bytes: a process that writes without pause must not keep the mounter from everything else.
const MAX_READ: usize = 64 * 1024;

pub(crate) struct Lines {
    pipe: File,
    open: bool,
    begun: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(pipe: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe: pipe.into(), open: true, begun: Vec::new() })
    }

    /// Until the other end is closed.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.pipe.as_fd())
    }

    /// The lines that are complete.
    pub(crate) fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 8192];
        let mut total = 0;
        while self.open && total < MAX_READ {
            match self.pipe.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(read) => {
                    total += read;
                    self.begun.extend(&buffer[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.open = error.kind() == io::ErrorKind::WouldBlock;
                    break;
                }
            }
            while let Some(end) = self.begun.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
                lines.push(text(&self.begun[..end]));
                self.begun.drain(..=end);
            }
            while self.begun.len() >= MAX_LINE {
                lines.push(text(&self.begun[..MAX_LINE]));
                self.begun.drain(..MAX_LINE);
            }
        }
        if !self.open && !self.begun.is_empty() {
            lines.push(text(&std::mem::take(&mut self.begun)));
        }
        lines
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_are_complete_and_bounded() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut lines = Lines::new(reader.into()).unwrap();
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.read(), ["one"]);
        writer.write_all(b"o\n\n").unwrap();
        assert_eq!(lines.read(), ["two", ""]);
        writer.write_all(&vec![b'x'; MAX_LINE + 3]).unwrap();
        assert_eq!(lines.read().iter().map(String::len).collect::<Vec<_>>(), [MAX_LINE]);
        drop(writer);
        assert_eq!((lines.read(), lines.open), (vec!["xxx".to_owned()], false));
    }
}
