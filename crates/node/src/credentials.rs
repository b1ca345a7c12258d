//! Keys for a mount: found, checked, written where the mount process reads them, and removed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use contract::volume::AuthenticationSource;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, renameat, unlinkat};
use thiserror::Error;

use crate::place::open_beneath;

const FOLDER: &str = "credentials";
const PROFILE: &str = "s3-csi";
/// Keys of a Secret.
const ACCESS_KEY_ID: &str = "access_key_id";
const SECRET_ACCESS_KEY: &str = "secret_access_key";
const SESSION_TOKEN: &str = "session_token";
/// No key of any provider is longer; session tokens are.
const LONGEST_KEY: usize = 128;
const LONGEST_TOKEN: usize = 8192;

#[derive(Debug, Error)]
pub enum CredentialsError {
    #[error(
        "static credentials of the driver not provided: put access_key_id and secret_access_key into the driver's Secret, \
         or use `authenticationSource: secret`"
    )]
    NoDriverKeys,
    #[error(
        "missing or invalid keys in Kubernetes Secret: {0}: the Secret of nodePublishSecretRef must have them"
    )]
    Secret(String),
    #[error(
        "`authenticationSource: pod` is not available yet: use `driver`, or `secret` with a nodePublishSecretRef"
    )]
    PodIdentity,
    #[error("cannot write the credentials: {0}")]
    Write(#[source] io::Error),
}

/// Shown by name only.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Keys(…)")
    }
}

/// Where the installation's own keys are: a mounted Secret, read anew every time, or variables.
#[derive(Clone, Debug)]
pub struct DriverKeys {
    pub folder: Option<PathBuf>,
}

impl DriverKeys {
    fn find(&self) -> Option<Keys> {
        let file = |name: &str| fs::read_to_string(self.folder.as_ref()?.join(name)).ok();
        let variable = |name: &str| std::env::var(name).ok();
        let get = |name: &str, or: &str| {
            file(name)
                .or_else(|| variable(or))
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        Some(Keys {
            access_key_id: get(ACCESS_KEY_ID, "AWS_ACCESS_KEY_ID")?,
            secret_access_key: get(SECRET_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY")?,
            session_token: get(SESSION_TOKEN, "AWS_SESSION_TOKEN"),
        })
    }
}

impl Keys {
    /// The keys that the volume is to be mounted with, and whose they are.
    pub fn choose(
        source: AuthenticationSource,
        secrets: &BTreeMap<String, String>,
        driver: &DriverKeys,
    ) -> Result<(Self, AuthenticationSource), CredentialsError> {
        match source {
            AuthenticationSource::Secret if !secrets.is_empty() => {
                Self::from_secret(secrets).map(|keys| (keys, AuthenticationSource::Secret))
            }
            // As in the reference: without a Secret, the driver's.
            AuthenticationSource::Secret | AuthenticationSource::Driver => {
                let keys = driver.find().ok_or(CredentialsError::NoDriverKeys)?;
                Ok((keys, AuthenticationSource::Driver))
            }
            AuthenticationSource::Pod => Err(CredentialsError::PodIdentity),
        }
    }

    fn from_secret(secrets: &BTreeMap<String, String>) -> Result<Self, CredentialsError> {
        let get = |name: &str| secrets.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let known = |value: &str, others: &str| {
            value.len() <= LONGEST_KEY
                && value.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
        };
        let access_key_id = get(ACCESS_KEY_ID).filter(|value| known(value, ""));
        let secret_access_key = get(SECRET_ACCESS_KEY).filter(|value| known(value, "/+-="));
        let token = get(SESSION_TOKEN);
        let token_fits = token
            .is_none_or(|token| token.len() <= LONGEST_TOKEN && token.chars().all(|c| c.is_ascii_graphic()));
        match (access_key_id, secret_access_key, token_fits) {
            (Some(id), Some(secret), true) => Ok(Self {
                access_key_id: id.to_owned(),
                secret_access_key: secret.to_owned(),
                session_token: token.map(str::to_owned),
            }),
            (id, secret, _) => {
                let wrong = [
                    (ACCESS_KEY_ID, id.is_none()),
                    (SECRET_ACCESS_KEY, secret.is_none()),
                    (SESSION_TOKEN, !token_fits),
                ];
                let wrong: Vec<&str> =
                    wrong.iter().filter(|(_, wrong)| *wrong).map(|(name, _)| *name).collect();
                Err(CredentialsError::Secret(wrong.join(", ")))
            }
        }
    }

    fn render(&self) -> String {
        let Self { access_key_id, secret_access_key, session_token } = self;
        let token = session_token
            .as_ref()
            .map(|token| {
                format!(
                    "aws_session_token={token}
"
                )
            })
            .unwrap_or_default();
        format!(
            "[{PROFILE}]\naws_access_key_id={access_key_id}\naws_secret_access_key={secret_access_key}\n{token}"
        )
    }
}

/// What tells the mount process where its keys are: it works in the shared folder, wherever the pod has that.
pub fn environment(mountpoint_pod: &str) -> [(String, String); 2] {
    let file = Path::new(FOLDER).join(mountpoint_pod);
    [
        ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), file.to_string_lossy().into_owned()),
        ("AWS_PROFILE".to_owned(), PROFILE.to_owned()),
    ]
}

/// Writes the keys into the folder shared with a Mountpoint Pod: whole or not at all, readable by its group alone, and
/// through no link that somebody in the pod may have put there. Says whether anything changed.
pub fn provide(comm: &OwnedFd, mountpoint_pod: &str, keys: &Keys) -> Result<bool, CredentialsError> {
    write(comm, mountpoint_pod, keys.render().as_bytes()).map_err(CredentialsError::Write)
}

fn write(comm: &OwnedFd, name: &str, content: &[u8]) -> io::Result<bool> {
    // The folder's group is the pod's: kubelet has seen to it.
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
    let draft = format!(".{name}");
    let _ = unlinkat(&folder, &draft, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&folder, &draft, flags, Mode::from_raw_mode(0o600))?;
    fchown(&file, Some(Uid::ROOT), Some(group))?;
    fchmod(&file, Mode::from_raw_mode(0o640))?;
    fs::File::from(file).write_all(content)?;
    renameat(&folder, &draft, &folder, name)?;
    Ok(true)
}

/// Up to one byte more than expected. The pod can write there: a pipe must not keep us, nor a huge file be read.
fn read(folder: &OwnedFd, name: &str, expected: usize) -> io::Result<Vec<u8>> {
    let file = open_beneath(folder, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK)?;
    let mut content = Vec::with_capacity(expected + 1);
    fs::File::from(file).take(expected as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Removes what [`provide`] wrote; nothing there is as good.
pub fn remove(comm: &OwnedFd, mountpoint_pod: &str) -> io::Result<()> {
    let gone = |outcome: rustix::io::Result<()>| match outcome {
        Err(error) if error != rustix::io::Errno::NOENT => Err(io::Error::from(error)),
        _ => Ok(()),
    };
    let folder = match open_beneath(comm, Path::new(FOLDER), OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    gone(unlinkat(&folder, OsStr::new(mountpoint_pod), AtFlags::empty()))?;
    gone(unlinkat(comm, FOLDER, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn secret(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn choose(source: AuthenticationSource, pairs: &[(&str, &str)]) -> Result<Keys, String> {
        let driver = DriverKeys { folder: None };
        Keys::choose(source, &secret(pairs), &driver).map(|(keys, _)| keys).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_is_checked_and_never_shown() {
        let keys = choose(
            AuthenticationSource::Secret,
            &[("access_key_id", " AKIA1 "), ("secret_access_key", "a/b+c-d="), ("other", "x")],
        )
        .unwrap();
        assert_eq!(keys.render(), "[s3-csi]\naws_access_key_id=AKIA1\naws_secret_access_key=a/b+c-d=\n");
        assert_eq!(format!("{keys:?}"), "Keys(…)");
        for (pairs, named) in [
            (&[("access_key_id", "AKIA1")][..], "secret_access_key"),
            (
                &[("access_key_id", "AK IA"), ("secret_access_key", "s3cret\nx")],
                "access_key_id, secret_access_key",
            ),
        ] {
            let error = choose(AuthenticationSource::Secret, pairs).unwrap_err();
            assert!(error.contains(&format!("Secret: {named}:")) && !error.contains("s3cret"), "{error}");
        }
        assert!(choose(AuthenticationSource::Pod, &[]).unwrap_err().contains("not available yet"));
    }

    #[test]
    fn the_drivers_keys_are_read_from_their_folder_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let driver = DriverKeys { folder: Some(folder.path().to_owned()) };
        assert!(driver.find().is_none() || std::env::var("AWS_ACCESS_KEY_ID").is_ok());
        for (id, secret) in [("ONE", "1"), ("TWO", "2")] {
            fs::write(folder.path().join(ACCESS_KEY_ID), format!("{id}\n")).unwrap();
            fs::write(folder.path().join(SECRET_ACCESS_KEY), secret).unwrap();
            let keys = driver.find().unwrap();
            assert_eq!((keys.access_key_id.as_str(), keys.secret_access_key.as_str()), (id, secret));
        }
    }

    #[test]
    fn files_are_private_whole_and_behind_no_link() {
        let comm = tempfile::tempdir().unwrap();
        let folder = rustix::fs::open(comm.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let keys = Keys {
            access_key_id: "A".into(),
            secret_access_key: "B".into(),
            session_token: Some("C".into()),
        };
        assert!(provide(&folder, "mp-1", &keys).unwrap());
        assert!(!provide(&folder, "mp-1", &keys).unwrap(), "nothing has changed");
        let file = comm.path().join("credentials/mp-1");
        assert!(fs::read_to_string(&file).unwrap().ends_with("aws_session_token=C\n"));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        remove(&folder, "mp-1").unwrap();
        remove(&folder, "mp-1").unwrap();
        assert!(!comm.path().join("credentials").exists());

        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), comm.path().join("credentials")).unwrap();
        assert!(provide(&folder, "mp-1", &keys).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
