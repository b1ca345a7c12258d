//! Temporary keys outlive the process that obtained them: the server that gives them may be away when a successor starts, and
//! a mount must not end whose keys are still valid. They are in the folder for the successor, which no other user can enter
//! and which is copied to the pod that a mount moves to.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use contract::keys::Keys;
use exchange::{Exchange, Server};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};

use crate::credentials::{KeysError, Source};

/// In the folder for the successor.
const FILE: &str = "keys";
/// Renamed to the file when it is complete. A draft that a dead process has left is overwritten.
const DRAFT: &str = ".keys";
/// For this process's user alone.
const MODE: u32 = 0o600;

#[derive(Debug)]
pub(crate) struct KeptKeys {
    folder: PathBuf,
    giver: String,
}

/// A newer release reads what an older one has written, or asks for new keys. Without `Debug`, because it would show secrets.
#[derive(Serialize, Deserialize)]
struct Kept {
    giver: String,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    /// In seconds since 1970.
    expires: u64,
}

impl KeptKeys {
    /// `None` for keys that need no server, and where nothing outlives the process.
    pub(crate) fn of(source: &Source, folder: Option<&Path>) -> Option<Self> {
        match source {
            Source::Exchange(exchange) => Some(Self { folder: folder?.to_owned(), giver: giver(exchange) }),
            Source::Unsigned | Source::File(_) | Source::Chain { .. } => None,
        }
    }

    /// The keys for a successor. Expired ones are better than none: requests fail until they are renewed, as they would if
    /// the predecessor lived, but the mount does not end.
    pub(crate) fn or_new(&self, source: &Source) -> Result<Option<Keys>, KeysError> {
        let kept = self.read();
        match kept {
            Some(keys) if keys.expires > Some(SystemTime::now()) => Ok(Some(keys)),
            expired => match (source.keys(), expired) {
                (Err(error), Some(keys)) => {
                    tracing::warn!(%error, "cannot renew the expired keys of an earlier process; they stay in use");
                    Ok(Some(keys))
                }
                (keys, _) => keys,
            },
        }
    }

    /// Keys that another server has given, or for another role, are not used.
    fn read(&self) -> Option<Keys> {
        let kept: Kept = serde_json::from_slice(&fs::read(self.folder.join(FILE)).ok()?).ok()?;
        (kept.giver == self.giver).then(|| Keys {
            access_key_id: kept.access_key_id,
            secret_access_key: kept.secret_access_key.into(),
            session_token: kept.session_token.map(Into::into),
            expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(kept.expires)),
        })
    }

    /// The mount works on if it fails; then a successor needs the server.
    pub(crate) fn write(&self, keys: &Keys) {
        let Some(expires) = keys.expires else { return };
        let expires = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let kept = Kept {
            giver: self.giver.clone(),
            access_key_id: keys.access_key_id.clone(),
            secret_access_key: keys.secret_access_key.expose_secret().to_owned(),
            session_token: keys.session_token.as_ref().map(|token| token.expose_secret().to_owned()),
            expires,
        };
        if let Err(error) = self.replace(&kept) {
            tracing::warn!(%error, "cannot keep the temporary keys for another mount process");
        }
    }

    fn replace(&self, kept: &Kept) -> io::Result<()> {
        let draft = self.folder.join(DRAFT);
        let mut file = File::options().create(true).truncate(true).write(true).mode(MODE).open(&draft)?;
        file.write_all(&serde_json::to_vec(kept)?)?;
        fs::rename(draft, self.folder.join(FILE))
    }
}

/// Which keys may stand for each other: those of one role, from one server.
fn giver(exchange: &Exchange) -> String {
    match &exchange.server {
        Server::Sts { endpoint, role_arn, .. } => format!("{role_arn} at {endpoint}"),
        Server::Agent { uri, .. } => uri.clone(),
        Server::Metadata { url } => url.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// No server listens there.
    const AWAY: &str = "http://127.0.0.1:1";

    fn source(role: &str) -> Source {
        let (endpoint, role_arn) = (AWAY.to_owned(), role.to_owned());
        let server =
            Server::Sts { endpoint, role_arn, session_name: String::new(), token_file: "/dev/null".into() };
        Source::Exchange(Exchange { server, ca_bundle: None })
    }

    fn keys(expires: SystemTime) -> Keys {
        Keys {
            access_key_id: "AKIA".to_owned(),
            secret_access_key: "secret".into(),
            session_token: Some("token".into()),
            expires: Some(expires),
        }
    }

    fn whole_seconds(time: SystemTime) -> SystemTime {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_successor_has_the_keys_of_the_same_role_even_if_they_have_expired() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, other) = (source("mine"), source("other"));
        let kept = |source: &Source| KeptKeys::of(source, Some(folder.path())).unwrap();
        assert!(kept(&mine).or_new(&mine).is_err(), "nothing is kept");
        let now = whole_seconds(SystemTime::now());
        for expires in [now + Duration::from_hours(1), now - Duration::from_hours(1)] {
            kept(&mine).write(&keys(expires));
            assert_eq!(kept(&mine).or_new(&mine).unwrap(), Some(keys(expires)));
            assert!(kept(&other).or_new(&other).is_err());
        }
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        fs::write(folder.path().join(FILE), "of another release").unwrap();
        assert!(kept(&mine).or_new(&mine).is_err());
    }

    #[test]
    fn only_keys_that_a_server_gives_are_kept() {
        assert!(KeptKeys::of(&source("mine"), None).is_none());
        assert!(KeptKeys::of(&Source::Unsigned, Some(Path::new("/tmp"))).is_none());
    }
}
