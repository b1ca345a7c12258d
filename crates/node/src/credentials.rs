//! Credentials of a mount: which source they come from, and the file through which the mount process gets them.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use contract::authentication::AuthenticationSource;
use contract::keys::Keys;
use contract::names::annotation;
use mounter::credentials::Credentials;
use rustix::fs::{AtFlags, Dir, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, renameat, unlinkat};
use secrecy::ExposeSecret as _;
use service::driver_identity::DriverIdentity;
use service::keys::{DriverKeys, KeysError};
use thiserror::Error;

use crate::identity::IdentityError;
use crate::safe_path::open_beneath;

const FOLDER: &str = "credentials";
const PROFILE: &str = "s3-csi";

#[derive(Debug, Error)]
pub enum CredentialsError {
    #[error(
        "the driver has no credentials: set access_key_id and secret_access_key in the driver's Secret, give its service \
         account a role, or use `authenticationSource: secret`"
    )]
    NoDriverKeys,
    #[error(
        "cannot tell whether the volume has a `nodePublishSecretRef`: the request has no secrets, which is also what an \
         empty Secret looks like, and the Mountpoint Pod has no annotation `{}` yet; check that the driver's controller, \
         which writes it, is running, or set `authenticationSource`",
        annotation::AUTHENTICATION_SOURCE
    )]
    Unrecorded,
    #[error(transparent)]
    Secret(#[from] KeysError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot write the credentials: {0}")]
    Write(#[source] io::Error),
}

/// What a volume is mounted with, after it was written.
#[derive(Clone, Debug)]
pub struct MountCredentials {
    /// For the mount process.
    pub credentials: Credentials,
    pub source: AuthenticationSource,
}

/// What a mount gets.
#[derive(Debug)]
pub enum Choice {
    Keys(Keys),
    /// The workload's identity, which the mount process exchanges for keys.
    Workload,
    /// The driver's, likewise.
    Driver(DriverIdentity),
}

/// What to mount a volume with, and whose it is. `requested` is what the kubelet's request shows, in which an empty
/// Secret looks like no Secret; `recorded` is what the controller read in the volume. The controller records it on Mountpoint
/// Pods of other versions, too.
pub fn choose(
    requested: Option<AuthenticationSource>,
    recorded: Option<AuthenticationSource>,
    secret_keys: &Result<Keys, KeysError>,
    driver: (&DriverKeys, Option<&DriverIdentity>),
) -> Result<(Choice, AuthenticationSource), CredentialsError> {
    let source = match (recorded, requested) {
        // Emptying the Secret must not give the workload the driver's keys instead.
        (Some(AuthenticationSource::Secret), _) => AuthenticationSource::Secret,
        (_, Some(requested)) => requested,
        (Some(recorded), None) => recorded,
        (None, None) => return Err(CredentialsError::Unrecorded),
    };
    let choice = match source {
        AuthenticationSource::Secret => Choice::Keys(secret_keys.clone()?),
        AuthenticationSource::Driver => match (driver.0.find(), driver.1) {
            (Some(keys), _) => Choice::Keys(keys),
            (None, Some(identity)) => Choice::Driver(identity.clone()),
            (None, None) => return Err(CredentialsError::NoDriverKeys),
        },
        AuthenticationSource::Pod => Choice::Workload,
    };
    Ok((choice, source))
}

/// The content of a shared credentials file.
fn render(keys: &Keys) -> String {
    let (id, secret) = (&keys.access_key_id, keys.secret_access_key.expose_secret());
    let mut text = format!("[{PROFILE}]\naws_access_key_id={id}\naws_secret_access_key={secret}\n");
    if let Some(token) = &keys.session_token {
        text.extend(["aws_session_token=", token.expose_secret(), "\n"]);
    }
    text
}

/// Where [`write_static_keys`] writes the keys, relative to the shared directory, which is the mount process's working
/// directory.
pub fn static_keys(mountpoint_pod: &str) -> Credentials {
    Credentials::StaticKeys { file: format!("{FOLDER}/{mountpoint_pod}"), profile: PROFILE.to_owned() }
}

/// Writes the keys into the directory shared with a Mountpoint Pod: atomically, readable by the pod's group only, and
/// through no link that the pod may have put there. Returns whether they changed.
pub fn write_static_keys(
    comm: &OwnedFd,
    mountpoint_pod: &str,
    keys: &Keys,
) -> Result<bool, CredentialsError> {
    write(comm, mountpoint_pod, render(keys).as_bytes()).map_err(CredentialsError::Write)
}

/// Where [`write_token`] writes the token, relative to the shared directory.
pub fn token_file(mountpoint_pod: &str) -> String {
    format!("{FOLDER}/{}", token(mountpoint_pod))
}

/// The same for a token of the workload.
pub fn write_token(comm: &OwnedFd, mountpoint_pod: &str, content: &str) -> Result<bool, CredentialsError> {
    write(comm, &token(mountpoint_pod), content.as_bytes()).map_err(CredentialsError::Write)
}

fn token(mountpoint_pod: &str) -> String {
    format!("{mountpoint_pod}.token")
}

fn write(comm: &OwnedFd, name: &str, content: &[u8]) -> io::Result<bool> {
    // The kubelet gave the directory the pod's fsGroup.
    let group = Gid::from_raw(rustix::fs::fstat(comm)?.st_gid);
    match mkdirat(comm, FOLDER, Mode::from_raw_mode(0o750)) {
        Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
        _ => {}
    }
    let folder = open_beneath(comm, Path::new(FOLDER), OFlags::RDONLY | OFlags::DIRECTORY)?;
    fchown(&folder, Some(Uid::ROOT), Some(group))?;
    fchmod(&folder, Mode::from_raw_mode(0o750))?;
    if read(&folder, name, content.len()).is_ok_and(|held| held == content) {
        return Ok(false);
    }
    let draft = draft(name);
    let _ = unlinkat(&folder, &draft, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&folder, &draft, flags, Mode::from_raw_mode(0o600))?;
    fchown(&file, Some(Uid::ROOT), Some(group))?;
    fchmod(&file, Mode::from_raw_mode(0o640))?;
    fs::File::from(file).write_all(content)?;
    renameat(&folder, &draft, &folder, name)?;
    Ok(true)
}

/// Written first and renamed; a process that was killed in between leaves it behind.
fn draft(name: &str) -> String {
    format!(".{name}")
}

/// Reads up to one byte more than expected, and never blocks: the pod can put a huge file or a pipe there.
fn read(folder: &OwnedFd, name: &str, expected: usize) -> io::Result<Vec<u8>> {
    let file = open_beneath(folder, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK)?;
    let mut content = Vec::with_capacity(expected + 1);
    fs::File::from(file).take(expected as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Removes the folder with everything in it: also the keys that the reference driver wrote for a mount that this driver ends,
/// under names of its own.
pub fn remove(comm: &OwnedFd) -> io::Result<()> {
    let gone = |outcome: rustix::io::Result<()>| match outcome {
        Err(error) if error != rustix::io::Errno::NOENT => Err(io::Error::from(error)),
        _ => Ok(()),
    };
    let folder = match open_beneath(comm, Path::new(FOLDER), OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            gone(unlinkat(&folder, entry.file_name(), AtFlags::empty()))?;
        }
    }
    gone(unlinkat(comm, FOLDER, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests;
