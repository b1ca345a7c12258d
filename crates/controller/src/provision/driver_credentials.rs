//! The driver's own credentials for S3: the keys of its Secret, or temporary ones of its identity.

use std::path::Path;
use std::time::{Duration, SystemTime};

use contract::keys::Keys;
use contract::s3::sts_endpoint;
use exchange::{Exchange, Server, renew_at};
use service::driver_identity::{DriverIdentity, IdentityFlags, SESSION_NAME};
use service::keys::DriverKeys;
use tokio::sync::Mutex;

use super::error::ProvisionError;

/// After an exchange that failed while the keys are still valid: one that gets no answer keeps all requests waiting.
const RETRY_AFTER: Duration = Duration::from_secs(30);

pub struct DriverCredentials {
    keys: DriverKeys,
    exchange: Option<Exchange>,
    /// Locked during an exchange: the requests that wait for it share its keys.
    held: Mutex<Option<Temporary>>,
}

struct Temporary {
    keys: Keys,
    renew_at: SystemTime,
}

impl DriverCredentials {
    pub fn new(keys: DriverKeys, flags: &IdentityFlags, region: &str, ca_bundle: Option<&Path>) -> Self {
        let server = flags.identity().map(|identity| match identity {
            DriverIdentity::WebIdentity { role_arn, token_file } => {
                let configured = Some(flags.sts_endpoint_url.clone()).filter(|url| !url.is_empty());
                let endpoint = configured.unwrap_or_else(|| sts_endpoint(region));
                Server::Sts { endpoint, role_arn, session_name: SESSION_NAME.to_owned(), token_file }
            }
            DriverIdentity::PodIdentity { uri, token_file } => Server::Agent { uri, token_file },
            DriverIdentity::InstanceProfile { url } => Server::Metadata { url },
        });
        let exchange = server.map(|server| Exchange { server, ca_bundle: ca_bundle.map(Path::to_owned) });
        Self { keys, exchange, held: Mutex::default() }
    }

    pub async fn find(&self) -> Result<Keys, ProvisionError> {
        if let Some(keys) = self.keys.find() {
            return Ok(keys);
        }
        let exchange = self.exchange.clone().ok_or(ProvisionError::NoDriverKeys)?;
        let mut held = self.held.lock().await;
        let now = SystemTime::now();
        if let Some(fresh) = held.as_ref().filter(|held| now < held.renew_at) {
            return Ok(fresh.keys.clone());
        }
        let exchanged = tokio::task::spawn_blocking(move || exchange.keys()).await;
        match (exchanged.expect("an exchange does not panic"), &mut *held) {
            (Ok(new), _) => {
                let renew_at = new.expires.map_or(now, |expires| renew_at(now, expires));
                *held = Some(Temporary { keys: new.clone(), renew_at });
                Ok(new)
            }
            (Err(error), Some(Temporary { keys: old, renew_at }))
                if old.expires.is_some_and(|at| now < at) =>
            {
                tracing::warn!(%error, "cannot renew the temporary keys; the old ones stay in use");
                *renew_at = old.expires.map_or(now, |expires| expires.min(now + RETRY_AFTER));
                Ok(old.clone())
            }
            (Err(error), _) => Err(ProvisionError::Exchange(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token is missing, so that each exchange fails.
    #[tokio::test]
    async fn a_failed_exchange_is_not_repeated_at_once_while_the_keys_are_valid() {
        let nowhere = Path::new("/nowhere");
        let flags = IdentityFlags {
            container_credentials_uri: "http://agent".to_owned(),
            container_token_file: Some(nowhere.to_owned()),
            ..IdentityFlags::default()
        };
        let keys = DriverKeys { folder: Some(nowhere.to_owned()) };
        let driver = DriverCredentials::new(keys, &flags, "us-east-1", None);
        let now = SystemTime::now();
        for (life, expected) in [(300, Some(30)), (10, Some(10)), (0, None)] {
            let (expires, expected) = (now + Duration::from_secs(life), expected.map(Duration::from_secs));
            let keys = Keys {
                access_key_id: "OLD".to_owned(),
                secret_access_key: "s".into(),
                session_token: None,
                expires: Some(expires),
            };
            *driver.held.lock().await = Some(Temporary { keys, renew_at: now });
            let found = driver.find().await.ok().map(|keys| keys.access_key_id);
            assert_eq!(found.as_deref(), expected.map(|_| "OLD"), "{life}");
            let renew_at = driver.held.lock().await.as_ref().unwrap().renew_at;
            let renewed_in = renew_at.duration_since(now).unwrap();
            let expected = expected.unwrap_or_default();
            assert!(renewed_in >= expected && renew_at <= expires.max(now), "{life}: {renewed_in:?}");
        }
    }
}
