//! A Unix socket that only root reaches, from its first moment.

use std::io;
use std::path::Path;

use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::lenient::Lenient;

/// The connections to a socket that this makes. One that a predecessor left is replaced, and its folder is made.
pub fn listen(path: &Path) -> io::Result<impl Stream<Item = io::Result<Lenient>> + use<>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The mask is the whole process's: a file that another thread makes meanwhile is more private than it need be.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    Ok(UnixListenerStream::new(listener?).map(|accepted| accepted.map(Lenient::new)))
}
