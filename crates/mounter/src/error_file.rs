//! Where the reason of a failure is left: in the shared folder, for people and for the node, and in the container's
//! termination message.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use mounter::handover::Refused;
use mounter::{DEATHS, ERROR};

pub(crate) fn write(comm: &Path, refused: &Refused) {
    replace(comm, ERROR, &refused.message);
}

/// A mount process of this mount has died.
pub(crate) fn write_deaths(comm: &Path, deaths: u64, reason: &str) {
    replace(comm, DEATHS, &format!("{deaths}\n{reason}"));
}

/// By renaming, so that a reader never sees half of it.
fn replace(comm: &Path, name: &str, content: &str) {
    let draft = comm.join(format!(".{name}"));
    let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, comm.join(name)));
    if let Err(error) = written {
        crate::log::warn(&format!("cannot write {name}: {error}"), &[]);
    }
}

/// Before another mount: they would be taken for deaths of its processes.
pub(crate) fn remove_deaths(comm: &Path) {
    // Most often there is none.
    let _ = fs::remove_file(comm.join(DEATHS));
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
