//! A mount process in a container with little memory.

use std::fs::File;
use std::io::{Read as _, Write as _};

use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::memory_limit::MemoryLimit;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, with};
use s3_csi_tests::{cluster, within};
use xtask::s3::{ALICE, Client};

const MIB: u64 = 1 << 20;
/// What the page on mount options promises to suffice.
const SMALL: u64 = 128 * MIB;
/// Several times what fits.
const SIZE: usize = 256 << 20;

/// Whatever is read or written has this at its n-th byte.
fn byte(at: usize) -> u8 {
    u8::try_from(at / 4099 % 251).unwrap()
}

fn confined(name: &str, memory: u64, arguments: &[&str]) -> (Client, MemoryLimit, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let group = MemoryLimit::new(&cluster(), name, memory);
    let pod = MountpointPod::start();
    group.enter(pod.process.id());
    let served = pod.serve(ALICE, name, arguments);
    (client, group, pod, served)
}

/// All at once, each in pieces of a megabyte.
fn streams(
    served: &Served,
    count: usize,
    stream: impl Fn(File, usize) + Clone + Send + 'static,
    create: bool,
) {
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (path, stream) = (served.path(&format!("file-{number}")), stream.clone());
            std::thread::spawn(move || {
                within(&path.clone().display().to_string(), LIMIT * 5, move || {
                    let file = File::options().read(!create).write(create).create(create).open(path).unwrap();
                    stream(file, number);
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn write(mut file: File, number: usize) {
    for piece in 0..SIZE >> 20 {
        let content: Vec<u8> = (0..1 << 20).map(|at| byte((piece << 20) + at + number)).collect();
        file.write_all(&content).unwrap();
    }
    file.sync_all().unwrap();
}

fn read(mut file: File, number: usize) {
    let mut content = vec![0; 1 << 20];
    for piece in 0..SIZE >> 20 {
        file.read_exact(&mut content).unwrap();
        assert!(
            content.iter().enumerate().all(|(at, is)| *is == byte((piece << 20) + at + number)),
            "{piece}"
        );
    }
    assert_eq!(file.read(&mut content).unwrap(), 0);
}

#[test]
fn large_files_are_written_and_read_within_the_containers_memory() {
    let (_client, group, _pod, served) = confined("little-memory", SMALL, &[]);
    streams(&served, 2, write, true);
    streams(&served, 2, read, false);
    assert_eq!(group.kills(), 0);
}

/// Else the volume's author could have it killed again and again.
#[test]
fn a_target_beyond_the_containers_limit_is_not_believed() {
    let (client, group, pod, served) = confined("much-too-much", SMALL, &["--memory-target=4096"]);
    let content: Vec<u8> = (0..SIZE).map(byte).collect();
    client.put("much-too-much", "file-0", &content).unwrap();
    streams(&served, 1, read, false);
    assert_eq!(group.kills(), 0);
    pod.logs("memory-target exceeds");
}

/// Small files are fetched when they are opened.
#[test]
fn files_that_are_open_and_not_read_leave_memory_for_others() {
    for (name, memory) in [("open-unread", SMALL), ("open-unread-less", SMALL / 2)] {
        let (client, group, _pod, served) = confined(name, memory, &[]);
        let small = vec![7; 1 << 20];
        client.put(name, "small", &small).unwrap();
        let content: Vec<u8> = (0..SIZE).map(byte).collect();
        client.put(name, "file-0", &content).unwrap();
        let unread: Vec<File> =
            (0..100).map(|_| served.touch("small", |path| File::open(path).unwrap())).collect();
        streams(&served, 1, read, false);
        served.write("written", vec![1; 20 << 20]).unwrap();
        for mut file in unread {
            let read = within("a small file", LIMIT, move || {
                let mut content = Vec::new();
                file.read_to_end(&mut content).map(|_| content)
            });
            assert!(read.unwrap() == small);
        }
        assert_eq!(group.kills(), 0);
    }
}

/// In each page of a listing, as servers send them.
const NAMES: usize = 1000;

/// A page of a listing, as a server sends it that has these objects. The name of the folder says how many pages there are.
fn page(request: &str) -> String {
    let parameters = || request.split(['?', '&', ' ']);
    let token = parameters().find_map(|part| part.strip_prefix("continuation-token="));
    let number: usize = token.map_or(0, |token| token.parse().unwrap());
    let prefix = parameters().find_map(|part| part.strip_prefix("prefix=")).unwrap();
    // What the folder has, or what begins with its name.
    let folder = prefix.strip_suffix("%2F").unwrap_or(prefix);
    let objects = (number * NAMES..(number + 1) * NAMES).map(|name| {
        format!(
            "<Contents><Key>{folder}/data-{name:08}.parquet</Key><ETag>\"{name:032x}\"</ETag><Size>1</Size>\
             <LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
        )
    });
    let objects = objects.collect::<Vec<_>>().concat();
    let next = number + 1;
    let is_last = folder == next.to_string();
    let token = format!("<NextContinuationToken>{next}</NextContinuationToken>");
    let token = if is_last { "" } else { &token };
    format!("<ListBucketResult><IsTruncated>{}</IsTruncated>{token}{objects}</ListBucketResult>", !is_last)
}

/// The kernel knows them all, and the next process must know what they mean. As many as the page on mount options says.
#[test]
fn the_next_mount_process_knows_many_names_within_the_containers_memory() {
    for (name, memory, pages) in [("many-names", SMALL, 50), ("many-names-less", SMALL / 2, 5)] {
        bucket(ALICE, name);
        let folder = format!("prefix={pages}");
        let faulty = Faulty::before("s3.test:80", move |_, line| {
            if line.contains("list-type=2") && line.contains(&folder) {
                return Fault::Invent(page);
            }
            Fault::None
        });
        let group = MemoryLimit::new(&cluster(), name, memory);
        let pod = MountpointPod::start();
        group.enter(pod.process.id());
        let request = with(pod.request(ALICE, name, &[]), "AWS_ENDPOINT_URL", &faulty.url());
        let served = pod.mount(&request).unwrap();
        let listed = || served.list(&pages.to_string()).unwrap().len();
        for _ in 0..3 {
            assert_eq!(listed(), NAMES * pages);
            assert_eq!(group.kills(), 0, "{} MiB", group.peak() / MIB);
            kill(&pod, between_requests);
        }
        assert_eq!(listed(), NAMES * pages);
        assert_eq!(group.kills(), 0, "{} MiB", group.peak() / MIB);
    }
}
