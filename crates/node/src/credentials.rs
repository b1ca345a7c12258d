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
mod tests {
    use super::*;
    use contract::authentication::SecretPresence;
    use std::collections::BTreeMap;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn secret(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    const INSTANCE: DriverIdentity = DriverIdentity::InstanceProfile { url: String::new() };

    /// From the volume through controller and kubelet to the keys.
    #[test]
    fn the_drivers_keys_serve_only_volumes_that_ask_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let driver = DriverKeys { folder: Some(folder.path().to_owned()) };
        fs::write(folder.path().join("access_key_id"), "DRIVER").unwrap();
        fs::write(folder.path().join("secret_access_key"), "d").unwrap();
        let whose = |attribute: &str, data: Option<&[(&str, &str)]>| {
            let reference = if data.is_some() { SecretPresence::Present } else { SecretPresence::Absent };
            let recorded =
                AuthenticationSource::of_volume(attribute, reference).map_err(|error| error.to_string())?;
            let sent = secret(data.unwrap_or_default());
            let seen = if sent.is_empty() { SecretPresence::Unknown } else { SecretPresence::Present };
            let asked =
                AuthenticationSource::of_request(attribute, seen).map_err(|error| error.to_string())?;
            let keys = service::keys::of_secret(&sent, "the Secret of nodePublishSecretRef");
            let chosen = choose(asked, Some(recorded), &keys, (&driver, Some(&INSTANCE)));
            Ok::<_, String>(match chosen.map_err(|error| error.to_string())?.0 {
                Choice::Keys(keys) => keys.access_key_id,
                Choice::Workload => "TOKEN".to_owned(),
                Choice::Driver(_) => "INSTANCE".to_owned(),
            })
        };
        let both = [("access_key_id", "OWN"), ("secret_access_key", "o")];
        let blank = [("access_key_id", ""), ("secret_access_key", "")];
        let other = [("password", "x")];
        let (own, drivers, token, refused) = (Some("OWN"), Some("DRIVER"), Some("TOKEN"), None);
        for (attribute, data, expected) in [
            ("", None, drivers),
            ("", Some(&both[..]), own),
            ("", Some(&[][..]), refused),
            ("", Some(&both[..1]), refused),
            ("", Some(&blank), refused),
            ("", Some(&other), refused),
            ("secret", None, refused),
            ("secret", Some(&both), own),
            ("secret", Some(&[]), refused),
            ("secret", Some(&both[..1]), refused),
            ("secret", Some(&blank), refused),
            ("secret", Some(&other), refused),
            // Explicit, by someone who may write volumes: the content of the Secret changes nothing.
            ("driver", None, drivers),
            ("driver", Some(&both), drivers),
            ("driver", Some(&[]), drivers),
            ("driver", Some(&both[..1]), drivers),
            ("pod", None, token),
            ("pod", Some(&both), token),
        ] {
            let found = whose(attribute, data);
            assert_eq!(found.as_deref().ok(), expected, "{attribute:?} {data:?}: {found:?}");
            if let (Err(error), "" | "secret") = (&found, attribute) {
                assert!(error.contains("nodePublishSecretRef"), "{error}");
            }
        }
    }

    /// One of the reference driver, to which the controller has not got yet.
    #[test]
    fn a_mountpoint_pod_without_a_record_gets_only_what_the_request_shows() {
        let nothing = DriverKeys { folder: Some("/nowhere".into()) };
        let own = secret(&[("access_key_id", "OWN"), ("secret_access_key", "o")]);
        let own = service::keys::of_secret(&own, "the Secret of nodePublishSecretRef");
        let chosen = |asked, recorded| choose(asked, recorded, &own, (&nothing, Some(&INSTANCE)));
        let source = |asked, recorded| chosen(asked, recorded).map(|(_, source)| source);
        let (driver, secret) = (AuthenticationSource::Driver, AuthenticationSource::Secret);
        assert_eq!(source(Some(secret), None).unwrap(), secret);
        let (choice, _) = chosen(Some(driver), None).unwrap();
        assert!(matches!(choice, Choice::Driver(_)), "without static keys, the driver's identity");
        assert_eq!(source(None, Some(driver)).unwrap(), driver);
        assert_eq!(source(None, Some(secret)).unwrap(), secret);
        let refused = source(None, None).unwrap_err();
        assert!(matches!(refused, CredentialsError::Unrecorded));
        assert!(refused.to_string().contains("`s3.csi.scality.com/authentication-source`"), "{refused}");
        let without = choose(Some(driver), None, &own, (&nothing, None));
        assert!(matches!(without, Err(CredentialsError::NoDriverKeys)));
    }

    #[test]
    fn files_are_private_whole_and_behind_no_link() {
        let comm = tempfile::tempdir().unwrap();
        let folder = rustix::fs::open(comm.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let keys = Keys {
            access_key_id: "A".into(),
            secret_access_key: "B".into(),
            session_token: Some("C".into()),
            expires: None,
        };
        assert!(write_static_keys(&folder, "mp-1", &keys).unwrap());
        assert!(!write_static_keys(&folder, "mp-1", &keys).unwrap(), "nothing has changed");
        let file = comm.path().join("credentials/mp-1");
        let text = "[s3-csi]\naws_access_key_id=A\naws_secret_access_key=B\naws_session_token=C\n";
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert!(write_token(&folder, "mp-1", "one").unwrap() && write_token(&folder, "mp-1", "two").unwrap());
        let token = comm.path().join(token_file("mp-1"));
        assert_eq!(
            (fs::read_to_string(&token).unwrap().as_str(), fs::metadata(&token).unwrap().mode() & 0o777),
            ("two", 0o640)
        );
        fs::write(comm.path().join("credentials/.mp-1"), "left by a killed process").unwrap();
        fs::write(comm.path().join("credentials/uid-volume-s3-csi-credentials"), "of the reference").unwrap();
        remove(&folder).unwrap();
        remove(&folder).unwrap();
        assert!(!comm.path().join("credentials").exists());

        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), comm.path().join("credentials")).unwrap();
        assert!(write_static_keys(&folder, "mp-1", &keys).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
