//! A Unix socket that only root reaches, from its first moment.

use std::io;
use std::path::Path;

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;

/// Creates the socket and its folder, replacing a socket that an earlier process left, and returns its connections.
pub fn listen(path: &Path) -> io::Result<impl Stream<Item = io::Result<UnixStream>> + use<>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The mask applies to the whole process: a file that another thread creates meanwhile is only more private.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    Ok(UnixListenerStream::new(listener?))
}
