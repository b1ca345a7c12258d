//! What is left for people to read after a failure.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use mounter::ERROR;
use mounter::reply::Refused;

/// Whole or not at all: whoever reads it must not see half a sentence.
pub(crate) fn write_error(comm: &Path, refused: &Refused) {
    let draft = comm.join(format!(".{ERROR}"));
    let written = fs::write(&draft, &refused.message).and_then(|()| fs::rename(&draft, comm.join(ERROR)));
    if let Err(error) = written {
        crate::log::warn(&format!("cannot write {ERROR}: {error}"), &[]);
    }
}

pub(crate) fn remove_error(comm: &Path) {
    // Most often there is none.
    let _ = fs::remove_file(comm.join(ERROR));
}

/// The container runtime makes the file and shows its content as the reason the container ended. Where there is no such
/// file, there is no runtime that would show it.
pub(crate) fn termination_message(file: &Path, reason: &str) {
    if let Ok(mut file) = File::options().write(true).truncate(true).open(file) {
        let _ = file.write_all(reason.as_bytes());
    }
}
