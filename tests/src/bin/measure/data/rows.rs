//! What programs do with files: the same with every server.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::amount::{Amount, CHUNK, LARGE_READ, MEDIUM_SIZE, SMALL_READ, SMALL_SIZE};

/// Threads of a program that uses many files at once.
const WORKERS: usize = 16;

pub(super) struct Row {
    /// Of its figures.
    pub(super) key: &'static str,
    /// How many requests to the server are counted for: files, or reads.
    pub(super) operations: fn(&Amount) -> usize,
    /// In the root of the mount; what is written has this name.
    pub(super) act: fn(&Path, &Amount, &str),
}

fn one(_: &Amount) -> usize {
    1
}

fn small_files(amount: &Amount) -> usize {
    amount.small_files
}

fn listed(amount: &Amount) -> usize {
    amount.listed
}

fn random_reads(amount: &Amount) -> usize {
    amount.random_reads
}

pub(super) const ROWS: &[Row] = &[
    Row { key: "seq_read", operations: one, act: |root, amount, _| read(&root.join(amount.large_key())) },
    Row {
        key: "seq_read_4",
        operations: one,
        act: |root, amount, _| at_once(&amount.streams(), |key| read(&root.join(key))),
    },
    Row {
        key: "seq_write",
        operations: one,
        act: |root, amount, _| write(&root.join("written"), amount.large),
    },
    Row {
        key: "seq_write_4",
        operations: one,
        act: |root, amount, name| {
            let names = [0, 1, 2, 3].map(|stream| format!("written-{name}-{stream}"));
            at_once(&names, |name| write(&root.join(name), amount.large / 4));
        },
    },
    Row {
        key: "random_256k",
        operations: random_reads,
        act: |root, amount, _| random_read(&root.join(amount.large_key()), amount, LARGE_READ),
    },
    Row {
        key: "random_4k",
        operations: random_reads,
        act: |root, amount, _| random_read(&root.join(amount.large_key()), amount, SMALL_READ),
    },
    Row {
        key: "small_read",
        operations: small_files,
        act: |root, amount, _| {
            amount.names().iter().for_each(|name| read_small(&root.join("small").join(name)))
        },
    },
    Row {
        key: "small_read_16",
        operations: small_files,
        act: |root, amount, _| {
            in_parallel(&amount.names(), |name| read_small(&root.join("parallel").join(name)));
        },
    },
    Row {
        key: "medium_read",
        operations: |amount| amount.medium_files,
        act: |root, amount, _| {
            amount.medium_names().iter().for_each(|name| read_medium(&root.join("medium").join(name)));
        },
    },
    // As a program that trains a model: every file whole, in another order.
    Row {
        key: "shuffled_read_16",
        operations: small_files,
        act: |root, amount, _| {
            in_parallel(&amount.shuffled_names(), |name| read_small(&root.join("small").join(name)));
        },
    },
    Row {
        key: "small_write",
        operations: small_files,
        act: |root, amount, name| {
            let folder = root.join(format!("one-by-one-{name}"));
            fs::create_dir(&folder).unwrap();
            amount.names().iter().for_each(|name| write_small(&folder.join(name)));
        },
    },
    Row {
        key: "small_write_16",
        operations: small_files,
        act: |root, amount, name| {
            let folder = root.join(format!("in-parallel-{name}"));
            fs::create_dir(&folder).unwrap();
            in_parallel(&amount.names(), |name| write_small(&folder.join(name)));
        },
    },
    Row {
        key: "find_cat",
        operations: small_files,
        act: |root, amount, _| {
            let found: Vec<_> =
                fs::read_dir(root.join(amount.found())).unwrap().map(|it| it.unwrap().path()).collect();
            for path in found {
                read_small(&path);
            }
        },
    },
];

/// Of a folder with thousands of files.
pub(super) const LISTINGS: &[Row] = &[
    Row {
        key: "find_10000",
        operations: one,
        act: |root, amount, _| assert_eq!(fs::read_dir(root.join("listed")).unwrap().count(), amount.listed),
    },
    Row {
        key: "ls_l_10000",
        operations: one,
        act: |root, amount, _| {
            let entries = fs::read_dir(root.join("listed")).unwrap();
            let sizes: Vec<u64> = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
            assert_eq!(sizes.len(), amount.listed);
        },
    },
];

/// With thousands of files that are used one by one, so once with each server.
pub(super) const ONCE: &[Row] = &[
    Row {
        key: "read_10000",
        operations: listed,
        act: |root, amount, _| amount.listed_names().iter().for_each(|name| read_listed(root, name)),
    },
    Row {
        key: "read_10000_16",
        operations: listed,
        act: |root, amount, _| in_parallel(&amount.listed_names(), |name| read_listed(root, name)),
    },
    Row {
        key: "find_cat_10000",
        operations: listed,
        act: |root, amount, _| {
            let found = fs::read_dir(root.join("listed")).unwrap();
            let found: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(found.len(), amount.listed);
            for name in found {
                read_listed(root, name);
            }
        },
    },
    Row {
        key: "write_10000",
        operations: listed,
        act: |root, amount, name| {
            let folder = root.join(format!("many-one-by-one-{name}"));
            fs::create_dir(&folder).unwrap();
            amount.listed_names().iter().for_each(|name| write_small(&folder.join(name)));
        },
    },
    Row {
        key: "write_10000_16",
        operations: listed,
        act: |root, amount, name| {
            let folder = root.join(format!("many-in-parallel-{name}"));
            fs::create_dir(&folder).unwrap();
            in_parallel(&amount.listed_names(), |name| write_small(&folder.join(name)));
        },
    },
    Row {
        key: "tar_x_5000",
        operations: |amount| amount.archived,
        act: |root, amount, name| {
            let folder = root.join(format!("unpacked-{name}"));
            fs::create_dir(&folder).unwrap();
            // What S3 has no room for: times, owners, modes.
            let options = ["--touch", "--no-same-owner", "--no-same-permissions", "--extract"];
            run(Command::new("tar")
                .args(options)
                .arg("--file")
                .arg(amount.archive())
                .arg("--directory")
                .arg(folder));
        },
    },
    Row {
        key: "cp_r",
        operations: small_files,
        act: |root, amount, name| {
            run(Command::new("cp")
                .arg("-r")
                .arg(root.join(amount.found()))
                .arg(root.join(format!("copied-{name}"))));
        },
    },
];

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

pub(super) fn read(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; CHUNK];
    while file.read(&mut buffer).unwrap() > 0 {}
}

fn write(path: &Path, length: u64) {
    let mut file = File::create(path).unwrap();
    let chunk = vec![0; CHUNK];
    for _ in 0..length / CHUNK as u64 {
        file.write_all(&chunk).unwrap();
    }
    file.sync_all().unwrap();
}

fn random_read(path: &Path, amount: &Amount, size: u64) {
    let file = File::open(path).unwrap();
    let mut buffer = vec![0; usize::try_from(size).unwrap()];
    for place in amount.places() {
        file.read_exact_at(&mut buffer, place).unwrap();
    }
}

fn read_small(path: &Path) {
    assert_eq!(fs::read(path).unwrap().len(), SMALL_SIZE, "{}", path.display());
}

fn read_medium(path: &Path) {
    assert_eq!(fs::read(path).unwrap().len(), MEDIUM_SIZE, "{}", path.display());
}

fn read_listed(root: &Path, name: impl AsRef<Path>) {
    assert_eq!(fs::read(root.join("listed").join(name)).unwrap(), b"x");
}

fn write_small(path: &Path) {
    fs::write(path, vec![b'x'; SMALL_SIZE]).unwrap();
}

fn at_once(names: &[String], act: impl Fn(&str) + Sync) {
    let act = &act;
    thread::scope(|scope| names.iter().for_each(|name| drop(scope.spawn(move || act(name)))));
}

pub(super) fn in_parallel(names: &[String], act: impl Fn(&str) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    act(name);
                }
            });
        }
    });
}
