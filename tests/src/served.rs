//! A bucket that is being served, and how to touch its paths. If the mount process is dead or stuck, a thread that touches one
//! waits without end and cannot be killed: so it must never be the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mounter::handover::Serving;
use node::mount_table::Device;
use node::mounts::Mounts;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// For anything that touches a served path or waits for a process; generous, as the machine may be busy.
pub const LIMIT: Duration = Duration::from_mins(3);

/// Runs `touch` on a thread of its own. Panics if it has not returned within `limit`; the thread is left behind, and the
/// end of the cluster, which aborts every FUSE connection, frees it.
pub fn within<T: Send + 'static>(
    what: &str,
    limit: Duration,
    touch: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // After the deadline there is no receiver any more.
        let _ = sender.send(touch());
    });
    receiver.recv_timeout(limit).unwrap_or_else(|error| match error {
        mpsc::RecvTimeoutError::Timeout => panic!("{what}: no answer within {limit:?}"),
        mpsc::RecvTimeoutError::Disconnected => panic!("{what}: panicked"),
    })
}

pub struct Served {
    pub(crate) point: TempDir,
    pub facts: Serving,
}

impl Served {
    /// Not from its metadata: a stand-in for the mount process does not answer.
    pub fn device(&self) -> Device {
        Mounts::default().table().unwrap().top(self.point.path()).unwrap().device
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// Touches the mount on a thread with a deadline.
    pub fn touch<T: Send + 'static>(&self, name: &str, act: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let path = self.path(name);
        within(&format!("{}", path.display()), LIMIT, move || act(&path))
    }

    pub fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        self.touch(name, |path| fs::read(path))
    }

    pub fn write(&self, name: &str, content: impl Into<Vec<u8>>) -> std::io::Result<()> {
        let content = content.into();
        self.touch(name, move |path| fs::write(path, content))
    }

    /// The names in a folder, sorted.
    pub fn list(&self, name: &str) -> std::io::Result<Vec<String>> {
        self.touch(name, |path| {
            let entries = fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
            let mut names: Vec<String> =
                entries.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            Ok(names)
        })
    }

    /// Ends the mount process, as the kernel does when memory is short.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.facts.pid).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Ends the connection to the mount process, as the node does when that does not respond.
    pub fn abort(&self) {
        unmount(self.point.path(), UnmountFlags::FORCE).unwrap();
    }

    pub fn unmount(&self) {
        unmount(self.point.path(), UnmountFlags::empty()).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Without waiting for those who still use it; it may be unmounted already.
        let _ = unmount(self.point.path(), UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_time_is_returned() {
        assert_eq!(within("a sum", Duration::from_secs(5), || 1 + 1), 2);
    }

    #[test]
    #[should_panic(expected = "a nap: no answer within 10ms")]
    fn a_late_answer_is_a_failure() {
        within("a nap", Duration::from_millis(10), || thread::sleep(Duration::from_secs(2)));
    }
}
