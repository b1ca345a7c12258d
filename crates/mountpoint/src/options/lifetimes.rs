//! How long a mount waits and remembers, by what its options say together.

use std::path::Path;
use std::time::Duration;

use mountpoint_s3_fs::fs::TimeToLive;

use super::Options;
use crate::outdated::KNOWN_FOR;

/// With a cache of contents, metadata is kept longer, too, as by `mount-s3`.
const TTL_WITH_CACHE: Duration = Duration::from_mins(1);

impl Options {
    pub(crate) fn server_timeout(&self) -> Duration {
        Duration::from_secs(self.server_timeout)
    }

    pub(crate) fn metadata_ttl(&self) -> TimeToLive {
        match self.metadata_ttl {
            // As in `mount-s3`: without any TTL, every entry of a listing would be looked up again at once.
            Some(TimeToLive::Duration(Duration::ZERO)) => TimeToLive::Minimal,
            Some(ttl) => ttl,
            None if self.caches_contents() => TimeToLive::Duration(TTL_WITH_CACHE),
            None => TimeToLive::Minimal,
        }
    }

    pub(crate) fn caches_contents(&self) -> bool {
        self.cache_folder().is_some() || self.cache_xz.is_some()
    }

    /// The directory for the cache, unless its size turns it off.
    pub(crate) fn cache_folder(&self) -> Option<&Path> {
        self.cache.as_deref().filter(|_| self.max_cache_size != Some(0))
    }

    /// Whether lookups and listings answer for other requests for less than a second, which the option does not turn off.
    pub(crate) fn keeps_lookups_briefly(&self) -> bool {
        self.metadata_ttl.is_none() && !self.caches_contents() && !self.library_front
    }

    /// How long lookups and listings answer for other lookups. `None` if each of these asks the server.
    pub(crate) fn known_for(&self) -> Option<Duration> {
        match self.metadata_ttl() {
            _ if self.keeps_lookups_briefly() => Some(KNOWN_FOR),
            TimeToLive::Minimal => None,
            TimeToLive::Indefinite => Some(TimeToLive::INDEFINITE_DURATION),
            TimeToLive::Duration(ttl) => Some(ttl),
        }
    }
}
