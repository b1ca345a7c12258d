//! From where the server is used: beside it, where transfers matter, and far away, where round trips do.

use std::time::Duration;

use s3_csi_tests::relay::Relay;

use super::amount::Amount;
use super::rows::{LISTINGS, ONCE, ROWS, Row};

pub(super) struct Place {
    /// At the end of keys.
    pub(super) suffix: &'static str,
    /// Through a relay, which counts the requests.
    pub(super) round_trip: Option<Duration>,
    pub(super) amount: Amount,
    pub(super) rows: &'static [&'static [Row]],
}

impl Place {
    pub(super) fn relay(&self) -> Option<Relay> {
        Some(Relay::to(Some("s3.test:80")).far_away(self.round_trip?))
    }
}

/// Where transfers matter, and where round trips do.
pub(super) const PLACES: [Place; 3] = [
    Place { suffix: "", round_trip: None, amount: NEAR, rows: &[ROWS, LISTINGS] },
    Place { suffix: COUNTED, round_trip: Some(Duration::from_millis(5)), amount: FAR, rows: &[ROWS] },
    Place { suffix: "_20ms", round_trip: Some(Duration::from_millis(20)), amount: FARTHER, rows: &[ROWS] },
];
/// The place whose requests for each operation stand for all places: it has as many files as the nearest one.
pub(super) const COUNTED: &str = "_5ms";
/// Where thousands of files are used, once. The relay only counts.
pub(super) const COUNTING: Place =
    Place { suffix: "", round_trip: Some(Duration::ZERO), amount: NEAR, rows: &[ONCE] };
pub(super) const NEAR: Amount = Amount {
    large: 1 << 30,
    random_reads: 128,
    small_files: 300,
    medium_files: 60,
    listed: 10_000,
    archived: 5_000,
};
pub(super) const FAR: Amount =
    Amount { large: 64 << 20, random_reads: 64, small_files: 300, medium_files: 60, listed: 0, archived: 0 };
/// Fewer, because each takes more than a tenth of a second.
pub(super) const FARTHER: Amount = Amount { small_files: 60, ..FAR };
