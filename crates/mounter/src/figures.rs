//! What a mount process has counted. It keeps a small file in the folder shared with the node, which exports the figures as
//! metrics. The pod can put anything there: names that are not known become `other`, and impossible numbers make the whole file
//! void.

use std::collections::BTreeMap;

use rustix::system::sysinfo;
use serde::{Deserialize, Deserializer, Serialize};

/// The file, in the folder shared with the node.
pub const FILE: &str = "mount.figures";
/// In bytes: several times what all operations with all codes take.
pub const LARGEST_FILE: u64 = 64 * 1024;
/// Upper bounds of the durations, in seconds: from a server in the same rack to the time after which the client ends an attempt
/// without any byte.
pub const BOUNDS: [f64; 8] = [0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// No mount ever counts more, and sums of a few of these fit into 64 bits.
const LARGEST: u64 = 1 << 53;

const OPERATIONS: [&str; 14] = [
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateMultipartUpload",
    "DeleteObject",
    "GetObject",
    "GetObjectAttributes",
    "HeadObject",
    "ListObjectsV2",
    "ListParts",
    "PutObject",
    "RenameObject",
    "UploadPart",
    "UploadPartCopy",
];
/// A server may invent statuses, which must not become as many time series.
const STATUSES: [&str; 20] = [
    "200", "204", "206", "301", "304", "307", "400", "403", "404", "405", "409", "411", "412", "416", "429",
    "500", "501", "502", "503", "504",
];
const CANCELED: &str = "canceled";
const UNANSWERED: &str = "none";
const OTHER: &str = "other";

/// The name of an operation of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Operation(&'static str);

/// How an attempt at a request ended: an HTTP status, `canceled`, or `none` without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Code(&'static str);

/// Counters begin with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub requests: BTreeMap<Operation, Requests>,
    /// Bytes that the kernel was given.
    pub read_bytes: u64,
    /// Bytes that the kernel handed over.
    pub written_bytes: u64,
    /// Blocks that were looked for in the cache.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// That have begun and are not complete.
    pub uploads: u64,
    /// When the request of the kernel that has waited longest began, as [`uptime`]. The node computes its age: a mount process
    /// in which nothing happens writes nothing.
    pub waiting_since: Option<u64>,
    /// When the keys expire, in seconds since 1970; nothing for keys that do not.
    pub keys_expire: Option<u64>,
}

/// Attempts at one kind of request to S3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    pub codes: BTreeMap<Code, u64>,
    /// How many took no longer than each of [`BOUNDS`], but longer than the one before; the last ones took longer than all.
    pub durations: [u64; BOUNDS.len() + 1],
    /// The sum of all durations.
    pub microseconds: u64,
}

impl Operation {
    pub fn of(name: &str) -> Self {
        Self(known(&OPERATIONS, name))
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl Code {
    pub const CANCELED: Self = Self(CANCELED);
    pub const UNANSWERED: Self = Self(UNANSWERED);

    pub fn of_status(status: i32) -> Self {
        Self(known(&STATUSES, &status.to_string()))
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }
}

fn known(names: &[&'static str], name: &str) -> &'static str {
    names.iter().find(|known| **known == name).copied().unwrap_or(OTHER)
}

impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        String::deserialize(text).map(|name| Self::of(&name))
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(text)?.as_str() {
            CANCELED => Self::CANCELED,
            UNANSWERED => Self::UNANSWERED,
            status => Self(known(&STATUSES, status)),
        })
    }
}

impl Figures {
    pub fn count(&mut self, operation: Operation, code: Code, seconds: f64) {
        let requests = self.requests.entry(operation).or_default();
        *requests.codes.entry(code).or_default() += 1;
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        requests.durations[bucket] += 1;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is not negative"
        )]
        let microseconds = (seconds * 1e6) as u64;
        requests.microseconds = requests.microseconds.saturating_add(microseconds);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // Nothing in it can fail to serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `None` for what no mount process writes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let figures: Self = serde_json::from_slice(bytes).ok()?;
        let Self { read_bytes, written_bytes, cache_hits, cache_misses, uploads, keys_expire, .. } = &figures;
        let own =
            [read_bytes, written_bytes, cache_hits, cache_misses, uploads].into_iter().chain(keys_expire);
        let counted = figures.requests.values().flat_map(|requests| {
            requests.codes.values().chain(&requests.durations).chain([&requests.microseconds])
        });
        let is_possible = own.chain(counted).all(|number| *number <= LARGEST);
        is_possible.then_some(figures)
    }

    /// In seconds, at the moment `now`; 0 if none waits.
    pub fn oldest_wait(&self, now: u64) -> u64 {
        self.waiting_since.map_or(0, |since| now.saturating_sub(since))
    }
}

/// Seconds since the machine started, which are the same for the node and its pods.
pub fn uptime() -> u64 {
    u64::try_from(sysinfo().uptime).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Figures {
        let mut figures = Figures {
            read_bytes: 7,
            waiting_since: Some(100),
            keys_expire: Some(1_900_000_000),
            ..Figures::default()
        };
        figures.count(Operation::of("GetObject"), Code::of_status(206), 0.004);
        figures.count(Operation::of("GetObject"), Code::of_status(503), 0.3);
        figures.count(Operation::of("GetObject"), Code::UNANSWERED, 31.0);
        figures
    }

    #[test]
    fn what_is_written_is_read() {
        let figures = sample();
        assert_eq!(Figures::parse(&figures.to_bytes()), Some(figures.clone()));
        let gets = &figures.requests[&Operation::of("GetObject")];
        assert_eq!(gets.durations, [1, 0, 0, 0, 0, 1, 0, 0, 1]);
        assert_eq!(gets.microseconds, 31_304_000);
        assert_eq!((figures.oldest_wait(130), figures.oldest_wait(90)), (30, 0), "clocks are read apart");
    }

    #[test]
    fn every_name_fits_into_a_file_and_no_other_one_is_kept() {
        let mut figures = Figures::default();
        for operation in OPERATIONS.map(Operation::of) {
            for code in STATUSES.iter().map(|status| status.parse().unwrap()).map(Code::of_status) {
                figures.count(operation, code, 1.0);
            }
            for code in [Code::CANCELED, Code::UNANSWERED, Code::of_status(418), Code::of_status(-1)] {
                figures.count(operation, code, 1.0);
            }
            figures.requests.get_mut(&operation).unwrap().microseconds = LARGEST;
        }
        let bytes = figures.to_bytes();
        assert!(bytes.len() as u64 * 4 < LARGEST_FILE, "{}", bytes.len());
        assert_eq!(Figures::parse(&bytes), Some(figures));
        let invented =
            br#"{"requests": {"Mine\"} 1": {"codes": {"418": 1, "x": 2}}, "GetObject": {}}, "later": []}"#;
        let read = Figures::parse(invented).unwrap();
        let names: Vec<&str> = read.requests.keys().map(|operation| operation.as_str()).collect();
        assert_eq!(names, ["GetObject", OTHER]);
        let codes: Vec<&str> =
            read.requests[&Operation(OTHER)].codes.keys().map(|code| code.as_str()).collect();
        assert_eq!(codes, [OTHER]);
    }

    #[test]
    fn impossible_figures_are_void() {
        for text in [
            "",
            "7",
            r#"{"read_bytes": -1}"#,
            r#"{"read_bytes": 9007199254740993}"#,
            r#"{"requests": {"GetObject": {"durations": [1]}}}"#,
            r#"{"requests": {"GetObject": {"codes": {"200": 18446744073709551615}}}}"#,
            r#"{"requests": {"GetObject": {"microseconds": 1e99}}}"#,
        ] {
            assert_eq!(Figures::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Figures::parse(b"{}"), Some(Figures::default()));
    }

    proptest! {
        #[test]
        fn a_file_with_changed_bytes_is_read_or_void(places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
            let mut bytes = sample().to_bytes();
            for (place, byte) in places {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let _ = Figures::parse(&bytes);
        }
    }
}
