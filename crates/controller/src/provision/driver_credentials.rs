//! The driver's own credentials for S3: the keys of its Secret, or temporary ones of its identity.

use std::path::Path;
use std::time::SystemTime;

use contract::keys::Keys;
use contract::s3::sts_endpoint;
use exchange::{Exchange, Server, renew_at};
use service::driver_identity::{DriverIdentity, IdentityFlags, SESSION_NAME};
use service::keys::DriverKeys;
use tokio::sync::Mutex;

use super::error::ProvisionError;

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
        match (exchanged.expect("an exchange does not panic"), &*held) {
            (Ok(new), _) => {
                let renew_at = new.expires.map_or(now, |expires| renew_at(now, expires));
                *held = Some(Temporary { keys: new.clone(), renew_at });
                Ok(new)
            }
            (Err(error), Some(old)) if old.keys.expires.is_some_and(|expires| now < expires) => {
                tracing::warn!(%error, "cannot renew the temporary keys; the old ones stay in use");
                Ok(old.keys.clone())
            }
            (Err(error), _) => Err(ProvisionError::Exchange(Box::new(error))),
        }
    }
}
