//! What happens to data when things go wrong, or when a program asks for what S3 cannot do. `docs/semantics.md` lists
//! these tests as promises to users. The file is long, because the page and the file are read side by side.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::io::Errno;
use s3_csi_tests::alone::alone;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::{ALICE, Client};

/// Everything that a user may ask for.
const ALL: &[&str] = &["--allow-delete", "--allow-overwrite"];

fn served(name: &str) -> (Client, MountpointPod, Served) {
    let client = bucket(ALICE, name);
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, name, ALL);
    (client, pod, served)
}

/// The same through a relay, and with few attempts, so that failures come soon.
fn relayed(name: &str) -> (Client, MountpointPod, Served, Relay) {
    let client = bucket(ALICE, name);
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, name, ALL), "AWS_ENDPOINT_URL", &relay.url());
    let served = pod.mount(&with(request, "AWS_MAX_ATTEMPTS", "2")).unwrap();
    (client, pod, served, relay)
}

/// An open file, used on threads with a deadline.
struct Open(Arc<File>);

impl Open {
    fn new(path: PathBuf, options: &fs::OpenOptions) -> std::io::Result<Self> {
        let options = options.clone();
        within("opening", LIMIT, move || options.open(path)).map(|file| Self(Arc::new(file)))
    }

    /// For writing, from nothing.
    fn create(path: PathBuf) -> std::io::Result<Self> {
        Self::new(path, File::options().write(true).create(true).truncate(true))
    }

    fn use_it<T: Send + 'static>(&self, what: &str, act: impl FnOnce(&File) -> T + Send + 'static) -> T {
        let file = Arc::clone(&self.0);
        within(what, LIMIT, move || act(&file))
    }

    fn write(&self, content: Vec<u8>) -> std::io::Result<()> {
        self.use_it("writing", move |mut file| file.write_all(&content))
    }

    fn sync(&self) -> std::io::Result<()> {
        self.use_it("fsync", File::sync_all)
    }

    fn read_some(&self) {
        self.use_it("the beginning", |mut file| file.read_exact(&mut [0; 4096]).unwrap());
    }

    fn read_rest(&self) -> std::io::Result<Vec<u8>> {
        self.use_it("the rest", |mut file| {
            let mut rest = Vec::new();
            file.read_to_end(&mut rest).map(|_| rest)
        })
    }

    fn close(self) {
        within("close", LIMIT, move || drop(self.0));
    }
}

/// A program that writes what it is fed, and looks at every error.
fn feed(program: &mut Command) -> Child {
    program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// With a block size, what comes is written as it comes.
fn dd(path: &Path) -> Command {
    let mut dd = Command::new("dd");
    dd.args([format!("of={}", path.display()), "bs=64K".to_owned()]);
    dd
}

/// How many bytes a process has written so far.
fn written(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap()
}

/// The one error that a program gets.
fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> Errno {
    Errno::from_raw_os_error(outcome.unwrap_err().raw_os_error().unwrap())
}

#[test]
fn a_rename_is_refused_and_both_files_stay() {
    let (client, _pod, served) = served("renames");
    client.put("renames", "from", b"source").unwrap();
    client.put("renames", "to", b"destination").unwrap();
    client.put("renames", "folder/file", b"x").unwrap();
    let rename = |from: &str, to: &str| {
        let to = served.path(to);
        served.touch(from, move |path| fs::rename(path, to))
    };
    for (from, to) in [("from", "to"), ("from", "new"), ("from", "folder/new"), ("folder", "folder2")] {
        assert_eq!(errno(rename(from, to)), Errno::NOSYS, "{from} to {to}");
    }
    assert_eq!(client.get("renames", "from").unwrap(), b"source");
    assert_eq!(client.get("renames", "to").unwrap(), b"destination");
    assert_eq!(client.objects("renames", "").unwrap(), ["folder/file", "from", "to"]);
}

/// `mv` falls back to copy and delete when a rename is refused across file systems only: the error reaches the user.
#[test]
fn mv_fails_and_loses_nothing() {
    let (client, _pod, served) = served("mv-fails");
    client.put("mv-fails", "from", b"source").unwrap();
    let (from, to) = (served.path("from"), served.path("to"));
    let status = within("mv", LIMIT, move || {
        Command::new("mv").arg(from).arg(to).stderr(Stdio::null()).status().unwrap()
    });
    assert!(!status.success());
    assert_eq!(client.get("mv-fails", "from").unwrap(), b"source");
    assert_eq!(client.objects("mv-fails", "").unwrap(), ["from"]);
}

#[test]
fn appending_is_refused_and_the_file_stays() {
    let (client, _pod, served) = served("appends");
    client.put("appends", "old", b"first line\n").unwrap();
    let append = |name: &str| {
        served.touch(name, |path| {
            let mut file = File::options().append(true).create(true).open(path)?;
            file.write_all(b"second line\n")?;
            file.sync_all()
        })
    };
    assert_eq!(errno(append("old")), Errno::PERM);
    assert_eq!(client.get("appends", "old").unwrap(), b"first line\n");
    append("new").unwrap();
    assert_eq!(client.get("appends", "new").unwrap(), b"second line\n", "to nothing it is a write");
    assert_eq!(errno(append("new")), Errno::PERM);
    assert_eq!(client.get("appends", "new").unwrap(), b"second line\n");
}

#[test]
fn changing_a_file_in_place_is_refused_and_the_file_stays() {
    let (client, _pod, served) = served("in-place");
    client.put("in-place", "file", b"0123456789").unwrap();
    // Opened for both, it is a reader's: which of the two it is to be shows only later.
    for (options, refusal) in
        [(File::options().write(true), Errno::PERM), (File::options().read(true).write(true), Errno::BADF)]
    {
        let outcome = Open::new(served.path("file"), options).and_then(|file| {
            file.use_it("writing", |file| file.write_all_at(b"X", 3).and_then(|()| file.sync_all()))
        });
        assert_eq!(errno(outcome), refusal, "{options:?}");
    }
    assert_eq!(client.get("in-place", "file").unwrap(), b"0123456789");
}

#[test]
fn truncating_works_to_nothing_and_is_refused_to_anything_else() {
    let (client, _pod, served) = served("truncates");
    client.put("truncates", "file", b"0123456789").unwrap();
    for length in [5, 20] {
        let cut = served.touch("file", move |path| File::options().write(true).open(path)?.set_len(length));
        assert_eq!(errno(cut), Errno::PERM, "to {length}");
        assert_eq!(client.get("truncates", "file").unwrap(), b"0123456789", "to {length}");
    }
    // Emptied only when the writer has closed it.
    served.touch("file", |path| File::create(path).map(drop)).unwrap();
    eventually("the file is empty", || client.get("truncates", "file").unwrap().is_empty());
}

#[test]
fn a_file_that_is_replaced_elsewhere_is_read_whole_or_not_at_all() {
    const SIZE: usize = 40 << 20;
    let (client, _pod, served) = served("swapped-elsewhere");
    client.put("swapped-elsewhere", "file", &vec![b'a'; SIZE]).unwrap();
    let reader = Open::new(served.path("file"), File::options().read(true)).unwrap();
    reader.read_some();
    client.put("swapped-elsewhere", "file", &vec![b'b'; SIZE]).unwrap();
    // What was fetched before may suffice; else the server says that its object is another one now.
    match reader.read_rest() {
        Ok(rest) => assert!(rest == vec![b'a'; SIZE - 4096], "a mixture was read"),
        error => assert_eq!(errno(error), Errno::STALE),
    }
    reader.close();
    assert!(served.read("file").unwrap() == vec![b'b'; SIZE], "a new reader gets the new one");
}

#[test]
fn a_file_that_is_being_read_is_not_overwritten_here() {
    alone(|| {
        const SIZE: usize = 40 << 20;
        let (client, _pod, served) = served("swapped-here");
        client.put("swapped-here", "file", &vec![b'a'; SIZE]).unwrap();
        let reader = Open::new(served.path("file"), File::options().read(true)).unwrap();
        reader.read_some();
        let refused = served.write("file", vec![b'b'; SIZE]);
        assert_eq!(errno(refused), Errno::PERM);
        assert!(reader.read_rest().unwrap() == vec![b'a'; SIZE - 4096]);
        assert!(client.get("swapped-here", "file").unwrap() == vec![b'a'; SIZE]);
    });
}

/// Between the lookup and the upload another client may create the file. Only the server can tell.
#[test]
fn what_another_client_has_created_meanwhile_is_not_replaced() {
    alone(|| {
        let client = bucket(ALICE, "made-meanwhile");
        let pod = MountpointPod::start();
        let served = pod.serve(ALICE, "made-meanwhile", &["--metadata-ttl=indefinite"]);
        for (name, size) in [("small", 10), ("large", 20 << 20)] {
            served.read(name).unwrap_err();
            client.put("made-meanwhile", name, b"theirs").unwrap();
            let written = Open::create(served.path(name)).and_then(|file| {
                file.write(vec![b'o'; size])?;
                file.sync()
            });
            assert_eq!(errno(written), Errno::IO, "{name}");
            assert_eq!(client.get("made-meanwhile", name).unwrap(), b"theirs");
        }
    });
}

#[test]
fn two_writers_of_one_file_do_not_mix() {
    alone(|| {
        let (client, _pod, served) = served("two-writers");
        let first = Open::create(served.path("file")).unwrap();
        first.write(b"first".to_vec()).unwrap();
        let second = Open::create(served.path("file")).and_then(|second| second.write(b"second".to_vec()));
        assert_eq!(errno(second), Errno::PERM, "the second writer is refused");
        first.sync().unwrap();
        first.close();
        assert_eq!(client.get("two-writers", "file").unwrap(), b"first");
    });
}

#[test]
fn a_failed_upload_is_an_error_for_the_writer_and_the_old_file_stays() {
    alone(|| {
        let (client, _pod, served, relay) = relayed("failed-upload");
        client.put("failed-upload", "file", b"old").unwrap();
        for name in ["file", "new"] {
            let file = Open::create(served.path(name)).unwrap();
            file.write(vec![b'n'; 1 << 20]).unwrap();
            relay.cut();
            assert_eq!(errno(file.sync()), Errno::IO, "{name}: fsync must not lie");
            file.close();
            relay.mend();
        }
        assert_eq!(client.get("failed-upload", "file").unwrap(), b"old");
        assert_eq!(client.objects("failed-upload", "").unwrap(), ["file"]);
    });
}

/// Programs that never call fsync learn it from close, as `cp` does. The line is cut while they run.
#[test]
fn cp_fails_when_its_upload_fails() {
    let (client, _pod, served, relay) = relayed("failed-cp");
    let mut cp = Command::new("cp");
    cp.arg("/dev/stdin").arg(served.path("copied"));
    for mut program in [cp, dd(&served.path("fed"))] {
        let name = format!("{program:?}");
        let mut child = feed(&mut program);
        let mut input = child.stdin.take().unwrap();
        let input = within(&name, LIMIT, move || {
            input.write_all(&vec![b'x'; 1 << 20]).unwrap();
            input
        });
        eventually("it has written all that came", || written(child.id()) >= 1 << 20);
        relay.cut();
        let status = within(&name, LIMIT * 2, move || {
            drop(input);
            child.wait().unwrap()
        });
        assert_eq!(status.code(), Some(1), "{name} looks at what close says");
        relay.mend();
        // `dd` closes a duplicate before it writes, and has created an empty file by that.
        for key in client.objects("failed-cp", "").unwrap() {
            assert_eq!(client.get("failed-cp", &key).unwrap(), b"", "{name}: nothing half-written");
        }
    }
}

#[test]
fn a_pod_that_ends_leaves_the_old_file_and_nothing_half_written() {
    alone(|| {
        let (client, mut pod, served) = served("killed-writing");
        client.put("killed-writing", "file", b"old").unwrap();
        let mut open = Vec::new();
        for name in ["file", "new"] {
            let file = Open::create(served.path(name)).unwrap();
            file.write(vec![b'n'; 20 << 20]).unwrap();
            open.push(file);
        }
        pod.end_container();
        for file in open {
            let written = file.write(vec![b'n'; 1 << 20]).and_then(|()| file.sync());
            assert_eq!(errno(written), Errno::NOTCONN);
            file.close();
        }
        assert_eq!(client.get("killed-writing", "file").unwrap(), b"old");
        assert_eq!(client.objects("killed-writing", "").unwrap(), ["file"]);
    });
}

#[test]
fn a_pod_that_ends_is_an_error_for_its_readers_and_no_hang() {
    let (client, mut pod, served) = served("killed-reading");
    client.put("killed-reading", "file", &vec![b'a'; 40 << 20]).unwrap();
    let file = Open::new(served.path("file"), File::options().read(true)).unwrap();
    file.read_some();
    pod.end_container();
    assert_eq!(errno(file.read_rest()), Errno::NOTCONN);
}

/// As on any file system: what a program had written when it died is there.
#[test]
fn a_killed_writer_leaves_what_it_had_written() {
    let (client, _pod, served) = served("killed-writer");
    let mut dd = feed(&mut dd(&served.path("file")));
    let mut input = dd.stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    eventually("the file is begun", || served.list("").unwrap() == ["file"]);
    eventually("the bytes have arrived", || written(dd.id()) >= 4);
    // `dd` closes a duplicate before it writes.
    assert_eq!(client.get("killed-writer", "file").unwrap(), b"", "not before it is closed");
    dd.kill().unwrap();
    within("dd's end", LIMIT, move || dd.wait().unwrap());
    eventually("it is an object", || client.get("killed-writer", "file").is_ok_and(|it| it == b"half"));
}

#[test]
fn a_full_cache_disk_only_makes_it_slower() {
    let folder = tempfile::tempdir_in("/run").unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", folder.path(), "tmpfs", flags, c"size=2m").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let client = bucket(ALICE, "full-cache");
    let content: Vec<u8> = (0..24_usize << 20).map(|at| u8::try_from(at / 4099 % 251).unwrap()).collect();
    client.put("full-cache", "file", &content).unwrap();
    let pod = MountpointPod::start();
    let cache = format!("--cache={}", folder.path().display());
    let served = pod.serve(ALICE, "full-cache", &[&cache, "--max-cache-size=1000"]);
    for _ in 0..2 {
        assert!(served.read("file").unwrap() == content);
    }
    drop(served);
    rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// As the kubelet does for a `subPath`, of which it holds a bind mount.
#[test]
fn what_is_held_and_removed_is_stale_and_its_name_is_gone() {
    let (client, _pod, served) = served("held-and-removed");
    let here = |name: &str| served.path(name);
    client.put("held-and-removed", "elsewhere/file", b"x").unwrap();
    let open = |name: &str| Open::new(here(name), File::options().read(true)).unwrap();
    let folder = here("here");
    within("making a folder", LIMIT, move || fs::create_dir(folder)).unwrap();
    let (made, found) = (open("here"), open("elsewhere"));
    let folder = here("here");
    within("removing it", LIMIT, move || fs::remove_dir(folder)).unwrap();
    client.delete("held-and-removed", "elsewhere/file").unwrap();
    for (held, name) in [(made, "here"), (found, "elsewhere")] {
        let held = Arc::clone(&held.0);
        eventually(name, || {
            let held = Arc::clone(&held);
            let seen = within("looking at what is held", LIMIT, move || held.metadata());
            seen.is_err_and(|error| error.raw_os_error() == Some(Errno::STALE.raw_os_error()))
        });
        let path = here(name);
        let seen = within("looking at the name", LIMIT, move || fs::metadata(path));
        assert_eq!(errno(seen), Errno::NOENT, "{name}");
    }
}

#[test]
fn what_objects_cannot_hold_is_refused_not_forgotten() {
    let (client, _pod, served) = served("metadata");
    client.put("metadata", "file", b"x").unwrap();
    let link = served.path("link");
    assert_eq!(errno(served.touch("file", move |path| symlink(path, link))), Errno::PERM);
    let link = served.path("hard");
    assert_eq!(errno(served.touch("file", move |path| fs::hard_link(path, link))), Errno::PERM);
    let mode = fs::Permissions::from_mode(0o600);
    assert_eq!(errno(served.touch("file", move |path| fs::set_permissions(path, mode))), Errno::PERM);
    let owned = served.touch("file", |path| std::os::unix::fs::chown(path, Some(77), None));
    assert_eq!(errno(owned), Errno::PERM);
    assert_eq!(client.objects("metadata", "").unwrap(), ["file"]);
}
