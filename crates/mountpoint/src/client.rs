//! The S3 client of the file system: the library's, with six differences. It changes its keys when their file changes. It
//! never sends a request that some servers misunderstand. It does not replace objects unless that is allowed. It does not
//! wait without end. It sends small files in one request, and fetches them when they are opened. It has the server copy what large files begin with when
//! they are continued.

mod confirm;
mod copies;
mod finish;
mod named;
mod renew_keys;
mod requests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use contract::keys::Keys;
use mountpoint_s3_client::config::S3ClientConfig;
use mountpoint_s3_client::{NewClientError, ObjectClient, S3CrtClient};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use crate::credentials::{KeysError, Source, Stamp, stamp};
use crate::first_read::FirstReads;
use crate::kept_keys::KeptKeys;
use crate::listings::Listings;
use crate::raw_client::{RawClient, RawClients, RawError};
use crate::renewal::keep_renewed;
use crate::server_timeout::{Answer, Awaited, ServerTimeout};
use crate::uploads::Uploads;

#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("cannot create the S3 client: {0}")]
    New(#[from] NewClientError),
}

/// How to make the library's client, again after each change of the keys.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) config: S3ClientConfig,
    pub(crate) source: Source,
    pub(crate) kept: Option<KeptKeys>,
}

impl Recipe {
    /// For another process that continues the mount.
    pub(crate) fn keep(&self, keys: Option<&Keys>) {
        if let (Some(kept), Some(keys)) = (&self.kept, keys) {
            kept.write(keys);
        }
    }

    pub(crate) fn make(&self, keys: Option<&Keys>) -> Result<S3CrtClient, ClientError> {
        Ok(S3CrtClient::new(self.config.clone().auth_config(self.source.auth(keys)?))?)
    }
}

/// How files are renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renames {
    Refused,
    /// With two requests, a copy and a deletion.
    ByCopy,
    /// Servers that do not know `RenameObject` mistake it for an upload of an empty object: the source stays, the
    /// destination is emptied, and the response is success. Only directory buckets are sure to know it.
    ByServer,
}

/// What may be done to existing objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) renames: Renames,
    /// Without it, an object that another client created since it was looked up is not replaced. Only the server can
    /// check that, with `If-None-Match`.
    pub(crate) overwrite: bool,
}

/// How requests are saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savings {
    /// New files of one part at most are sent in a single request. The library always takes three.
    pub(crate) single_put: bool,
    /// Small files are fetched when they are opened, as long as no more than these were opened and not read yet.
    pub(crate) first_reads: usize,
    /// Reads at random places fetch nothing else.
    pub(crate) exact_reads: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    recipe: Recipe,
    rights: Rights,
    savings: Savings,
    timeout: Arc<ServerTimeout>,
    uploads: Arc<Uploads>,
    raw: RawClients,
    /// The server does not copy parts of objects, or not with these keys.
    cannot_copy: AtomicBool,
    listings: Listings,
    first_reads: FirstReads<<S3CrtClient as ObjectClient>::GetObjectResponse>,
    current: RwLock<S3CrtClient>,
    /// Locked while changed keys are read; other requests use the old ones meanwhile.
    seen: Mutex<Seen>,
}

/// The file of the keys as it was last read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) stamp: Option<Stamp>,
    pub(crate) keys: Option<Keys>,
    /// Set after a read that failed, because the next one may succeed.
    retry_at: Option<Instant>,
}

impl Seen {
    pub(crate) fn new(stamp: Option<Stamp>, keys: Option<Keys>) -> Self {
        Self { stamp, keys, retry_at: None }
    }
}

impl Client {
    /// `first` was made by [`Recipe::make`] and has worked.
    pub(crate) fn new(
        recipe: Recipe,
        first: S3CrtClient,
        seen: Seen,
        rights: Rights,
        savings: Savings,
        raw: RawClients,
    ) -> Self {
        let expires = seen.keys.as_ref().and_then(|keys| keys.expires);
        let (current, seen) = (RwLock::new(first), Mutex::new(seen));
        let (uploads, listings) = (Arc::default(), Listings::default());
        let first_reads = FirstReads::new(savings.first_reads);
        let inner = Arc::new(Inner {
            recipe,
            rights,
            savings,
            timeout: raw.server_timeout(),
            uploads,
            raw,
            cannot_copy: AtomicBool::new(false),
            listings,
            first_reads,
            current,
            seen,
        });
        if let Some(expires) = expires {
            let (identity, inner) = (inner.recipe.source.identity(), Arc::downgrade(&inner));
            // The request that finds the keys expired does not renew them: it would wait for another server, and all others
            // would wait for it.
            thread::spawn(move || {
                // The working directory is the one shared with the node.
                keep_renewed(&inner, expires, &identity, Path::new("."), Inner::replace_keys);
            });
        }
        Self(inner)
    }

    pub(crate) fn uploads(&self) -> Arc<Uploads> {
        Arc::clone(&self.0.uploads)
    }

    /// `None` for directory buckets, which are not listed in the order of names.
    pub(crate) fn listings(&self) -> Option<&Listings> {
        (self.0.rights.renames != Renames::ByServer).then_some(&self.0.listings)
    }

    pub(crate) fn renames(&self) -> Renames {
        self.0.rights.renames
    }

    /// For requests that the library's client does not know.
    pub(crate) fn raw(&self) -> Result<Arc<RawClient>, RawError> {
        self.get();
        let keys = self.0.seen.lock().keys.clone();
        self.0.raw.get(&self.0.recipe.source, keys)
    }

    pub(crate) fn timeout(&self) -> Arc<ServerTimeout> {
        Arc::clone(&self.0.timeout)
    }

    pub(crate) fn fetches_exactly(&self) -> bool {
        self.0.savings.exact_reads
    }

    /// A reader was closed.
    pub(crate) fn end_reading(&self, handle: u64) {
        self.0.first_reads.end(handle);
    }

    async fn answer<T, E>(&self, request: impl Future<Output = Answer<T, E>>) -> Answer<T, E> {
        self.0.timeout.limit_request(Awaited::Answer, request).await
    }

    async fn transfer<T, E>(&self, request: impl Future<Output = Answer<T, E>>) -> Answer<T, E> {
        self.0.timeout.limit_request(Awaited::Transfer, request).await
    }

    /// The client with the newest keys. Checking the file takes a microsecond, which is nothing beside a request.
    fn get(&self) -> S3CrtClient {
        let inner = &*self.0;
        if let (Some(path), Some(mut seen)) = (inner.recipe.source.file(), inner.seen.try_lock()) {
            let newest = stamp(path);
            let due = seen.retry_at.is_none_or(|at| at <= Instant::now());
            if newest.is_some() && newest != seen.stamp && due {
                inner.renew(&mut seen, newest);
            }
        }
        inner.current.read().clone()
    }
}
