//! The socket of the hand-over.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use mounter::SOCKET;
use rustix::fs::Mode;

const DRAFT: &str = "mount.new";

/// `bind` creates the file before `listen` accepts connections. The node waits for the file, and would be refused in
/// between, so the socket gets its name last. That also replaces the socket of a mounter that was killed.
pub(crate) fn listen(comm: &Path) -> io::Result<UnixListener> {
    let draft = comm.join(DRAFT);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Private from the beginning. The mask belongs to the whole process, which has only one thread.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&draft);
    rustix::process::umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    std::fs::rename(draft, comm.join(SOCKET))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn it_is_private_and_replaces_a_leftover_socket() {
        let comm = tempfile::tempdir().unwrap();
        drop(listen(comm.path()).unwrap());
        assert!(comm.path().join(SOCKET).exists(), "std leaves the file, as after SIGKILL");
        std::fs::write(comm.path().join(DRAFT), "of a mounter that was killed").unwrap();
        let _listener = listen(comm.path()).unwrap();
        let mode = std::fs::metadata(comm.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
