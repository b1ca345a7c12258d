//! Where the reason of a failure is left for people: a file in the shared folder, and the container's termination message.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use mounter::ERROR;
use mounter::handover::Refused;

/// By renaming, so that a reader never sees half of it.
pub(crate) fn write(comm: &Path, refused: &Refused) {
    let draft = comm.join(format!(".{ERROR}"));
    let written = fs::write(&draft, &refused.message).and_then(|()| fs::rename(&draft, comm.join(ERROR)));
    if let Err(error) = written {
        crate::log::warn(&format!("cannot write {ERROR}: {error}"), &[]);
    }
}

pub(crate) fn remove(comm: &Path) {
    // Most often there is none.
    let _ = fs::remove_file(comm.join(ERROR));
}

/// The container runtime creates the file and reports its content. Without the file there is no such runtime.
pub(crate) fn write_termination_message(file: &Path, reason: &str) {
    if let Ok(mut file) = File::options().write(true).truncate(true).open(file) {
        let _ = file.write_all(reason.as_bytes());
    }
}
