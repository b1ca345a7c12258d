//! The keys of the client when their file changes, or before they expire.

use std::time::{Duration, Instant, SystemTime};

use super::{ClientError, Inner, Seen};
use crate::credentials::{KeysError, Stamp};

/// Between attempts to read a file that could not be read. Without it, every request would try.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Inner {
    /// Returns when the new keys expire.
    pub(super) fn replace_keys(&self) -> Result<SystemTime, ClientError> {
        let keys = self.recipe.source.keys()?;
        let client = self.recipe.make(keys.as_ref())?;
        *self.current.write() = client;
        self.recipe.keep(keys.as_ref());
        let expires = keys.as_ref().and_then(|keys| keys.expires).unwrap_or_else(SystemTime::now);
        self.seen.lock().keys = keys;
        tracing::info!("temporary keys renewed");
        Ok(expires)
    }

    /// The node rewrites the file more often than its keys change, and a client is not cheap.
    pub(super) fn renew(&self, seen: &mut Seen, newest: Option<Stamp>) {
        let made = self.recipe.source.keys().map_err(ClientError::from).and_then(|keys| {
            let changed = keys != seen.keys;
            let client = changed.then(|| self.recipe.make(keys.as_ref())).transpose()?;
            Ok((keys, client))
        });
        match made {
            Ok((keys, client)) => {
                *seen = Seen::new(newest, keys);
                if let Some(client) = client {
                    *self.current.write() = client;
                    tracing::info!("credentials changed");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot use the changed credentials; the old ones stay in use");
                match error {
                    // It was read; only the next change of the file can help.
                    ClientError::Keys(KeysError::Missing { .. }) => seen.stamp = newest,
                    _ => seen.retry_at = Some(Instant::now() + RETRY_AFTER),
                }
            }
        }
    }
}
