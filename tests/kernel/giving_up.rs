//! Where the death of a mount process is noticed: by a request that processes die of, by files
//! whose bytes or objects are gone, and by mounts that no process can continue.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;

use mounter::{ERROR, JOURNAL, SURVIVAL};
use rustix::io::Errno;
use s3_csi_tests::alone::alone;
use s3_csi_tests::killer::{at_once, kill};
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;
use crate::survival::content;

/// The server is away, so that the read is under way each time.
#[test]
fn a_request_that_mount_processes_die_of_is_refused_and_others_are_not() {
    let client = bucket(ALICE, "survive-deadly");
    // More than opening it fetches.
    client.put("survive-deadly", "file", &content(2 << 20, 7)).unwrap();
    client.put("survive-deadly", "other", b"other").unwrap();
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, "survive-deadly", &[]), "AWS_ENDPOINT_URL", &relay.url());
    let served = pod.mount(&request).unwrap();
    let file = served.touch("file", |path| File::open(path)).unwrap();
    relay.cut();
    let reader = std::thread::spawn(move || file.read_exact_at(&mut [0; 4096], 0));
    // More often than it takes: one that dies before it gets the request has not died of it.
    for _ in 0..20 {
        if reader.is_finished() {
            break;
        }
        kill(&pod, at_once);
        eventually("it serves", || served.touch("", |path| rustix::fs::statvfs(path).is_ok()));
    }
    let failed = within("a read", LIMIT, move || reader.join().unwrap());
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    pod.logs("mount processes died while handling it");
    relay.mend();
    assert_eq!(served.read("other").unwrap(), b"other");
}

#[test]
fn a_mount_whose_journal_cannot_be_written_works_on_and_ends_with_its_process() {
    let client = bucket(ALICE, "survive-full");
    let mut pod = MountpointPod::start_in_memory(1 << 20);
    let served = pod.serve(ALICE, "survive-full", &[]);
    let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
    assert!(journal.exists());
    let mut filler = File::create(pod.comm.path().join("filler")).unwrap();
    while filler.write_all(&[0; 512]).is_ok() {}
    for number in 0..100 {
        client.put("survive-full", &format!("file-{number}"), b"content").unwrap();
        assert_eq!(served.read(&format!("file-{number}")).unwrap(), b"content");
    }
    served.write("written", "content").unwrap();
    assert_eq!(client.get("survive-full", "written").unwrap(), b"content");
    assert!(!journal.exists());
    drop(filler);
    fs::remove_file(pod.comm.path().join("filler")).unwrap();
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("ended with signal: 9 (SIGKILL)"), "{reason}");
    assert_eq!(fs::read_to_string(pod.comm.path().join(ERROR)).unwrap(), reason);
    let error = served.read("file-0").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
}

/// Its journal is not one.
#[test]
fn a_mount_that_cannot_be_served_any_more_ends() {
    let (_client, mut pod, served) = served("survive-not", &[]);
    fs::write(pod.comm.path().join(SURVIVAL).join(JOURNAL), "nonsense\n").unwrap();
    served.kill();
    assert_eq!(pod.ended().code(), Some(1));
    let reason = fs::read_to_string(&pod.termination_log).unwrap();
    assert!(reason.contains("the next mount process cannot continue"), "{reason}");
    let error = served.read("file").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
}

#[test]
fn a_large_file_whose_bytes_are_lost_is_an_error_and_the_old_one_stays() {
    // A process that another test starts would close the file, which publishes it.
    alone(|| {
        let (client, pod, served) = served("survive-large", &["--allow-overwrite"]);
        client.put("survive-large", "file", b"old").unwrap();
        for name in ["file", "new"] {
            let file = served.touch(name, |path| File::create(path)).unwrap();
            let part = content(12 << 20, 4);
            let file = within("a write", LIMIT, move || (&file).write_all(&part).map(|()| file)).unwrap();
            let journal = pod.comm.path().join(SURVIVAL).join(JOURNAL);
            let upload = format!("/{name}?uploadId=");
            eventually("the server has confirmed a part", || {
                fs::read_to_string(&journal).unwrap().contains(&upload)
            });
            kill(&pod, at_once);
            let failed =
                within("a write", LIMIT, move || (&file).write_all(b"more").and_then(|()| file.sync_all()));
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
        assert_eq!(client.get("survive-large", "file").unwrap(), b"old");
        assert_eq!(served.read("file").unwrap(), b"old");
        assert_eq!(client.objects("survive-large", "").unwrap(), ["file"], "no part of the new one");
        eventually("no upload is left on the server", || {
            client.unfinished_uploads("survive-large").unwrap().is_empty()
        });
    });
}

#[test]
fn an_object_that_was_replaced_or_deleted_is_not_read_as_the_old_one() {
    let (client, pod, served) = served("survive-replaced", &[]);
    let open = |name: &str| {
        client.put("survive-replaced", name, &content(1 << 20, 5)).unwrap();
        served.touch(name, |path| File::open(path)).unwrap()
    };
    let files = [open("replaced"), open("deleted")];
    client.put("survive-replaced", "replaced", &content(1 << 20, 6)).unwrap();
    client.delete("survive-replaced", "deleted").unwrap();
    kill(&pod, at_once);
    for file in files {
        let failed = within("a read", LIMIT, move || file.read_exact_at(&mut [0; 4096], 512 << 10));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
    }
    assert!(served.read("replaced").unwrap() == content(1 << 20, 6));
    assert_eq!(served.read("deleted").unwrap_err().kind(), ErrorKind::NotFound);
}
