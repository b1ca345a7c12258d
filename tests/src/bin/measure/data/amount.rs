//! How much is read and written, and what has to be there before.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use xtask::s3::Client;

use super::BUCKET;
use super::rows::in_parallel;

/// Bytes of each read and write of a large file, through the mount and with plain requests.
pub(super) const CHUNK: usize = 1 << 20;
/// Bytes of reads at random places.
pub(super) const LARGE_READ: u64 = 256 << 10;
pub(super) const SMALL_READ: u64 = 4 << 10;
pub(super) const SMALL_SIZE: usize = 4 << 10;
/// As large as a file may be that one request reads.
pub(super) const MEDIUM_SIZE: usize = 1 << 20;
/// Files that are used at the same time.
const STREAMS: u64 = 4;

#[derive(Clone, Copy)]
pub(super) struct Amount {
    /// Bytes of the large file, and of several smaller ones together.
    pub(super) large: u64,
    pub(super) random_reads: usize,
    /// Files that are read, as many that are written, and as many that are found and read.
    pub(super) small_files: usize,
    /// Files of a megabyte that are read.
    pub(super) medium_files: usize,
    /// Files in one folder that is listed.
    pub(super) listed: usize,
    /// Files in an archive.
    pub(super) archived: usize,
}

impl Amount {
    pub(super) fn large_key(&self) -> String {
        format!("large-{}", self.large)
    }

    pub(super) fn streams(&self) -> Vec<String> {
        (0..STREAMS).map(|stream| format!("stream-{}-{stream}", self.large)).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        (0..self.small_files).map(|number| number.to_string()).collect()
    }

    pub(super) fn medium_names(&self) -> Vec<String> {
        (0..self.medium_files).map(|number| number.to_string()).collect()
    }

    pub(super) fn listed_names(&self) -> Vec<String> {
        (0..self.listed).map(|number| number.to_string()).collect()
    }

    /// The folder of files that are found by listing it: it has no others.
    pub(super) fn found(&self) -> String {
        format!("found-{}", self.small_files)
    }

    pub(super) fn shuffled_names(&self) -> Vec<String> {
        shuffled(self.small_files).iter().map(usize::to_string).collect()
    }

    /// Offsets all over the large object, the same in every round.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let slots = shuffled(usize::try_from(self.large / LARGE_READ).unwrap());
        slots.into_iter().take(self.random_reads).map(|slot| slot as u64 * LARGE_READ)
    }

    pub(super) fn archive(&self) -> PathBuf {
        std::env::temp_dir().join(format!("bench-{}.tar", self.archived))
    }

    pub(super) fn fill(&self, client: &Client) {
        let bytes = |length: u64| vec![7; usize::try_from(length).unwrap()];
        client.put(BUCKET, &self.large_key(), &bytes(self.large)).unwrap();
        for key in self.streams() {
            client.put(BUCKET, &key, &bytes(self.large / STREAMS)).unwrap();
        }
        let small = vec![b'x'; SMALL_SIZE];
        in_parallel(&self.names(), |name| {
            for folder in ["small", "parallel", &self.found()] {
                client.put(BUCKET, &format!("{folder}/{name}"), &small).unwrap();
            }
        });
        let medium = vec![b'x'; MEDIUM_SIZE];
        in_parallel(&self.medium_names(), |name| {
            client.put(BUCKET, &format!("medium/{name}"), &medium).unwrap();
        });
        in_parallel(&self.listed_names(), |name| {
            client.put(BUCKET, &format!("listed/{name}"), b"x").unwrap();
        });
        self.write_archive(&small);
    }

    fn write_archive(&self, content: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..self.archived {
            fs::write(folder.path().join(number.to_string()), content).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.args(["--create", "--file"]).arg(self.archive()).arg("--directory").arg(folder.path());
        assert!(tar.arg(".").status().unwrap().success());
    }
}

/// Each number below `count` once, in the same order every time.
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    // A linear congruential generator, with Knuth's numbers.
    let mut random = 0_u64;
    for last in (1..count).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(random >> 33).unwrap() % (last + 1);
        numbers.swap(last, other);
    }
    numbers
}
