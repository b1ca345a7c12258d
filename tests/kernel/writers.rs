//! Files that several programs write, or one program after it has closed a duplicate: they are whole. Each close publishes
//! what was written so far, and a later write continues from there. `docs/semantics.md` lists these tests, too.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use s3_csi_tests::alone::alone;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;

/// Runs a script with the path of a file as its argument.
fn run(served: &Served, name: &str, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-ec", script, "sh"]).arg(served.path(name)).stdin(Stdio::null());
    within(script, LIMIT, move || shell.output().unwrap())
}

/// All of it must have succeeded.
fn succeeds(served: &Served, name: &str, script: &str) {
    let output = run(served, name, script);
    assert!(output.status.success() && output.stderr.is_empty(), "{script}: {output:?}");
}

/// Writes, and closes a duplicate, as the end of one of several programs does.
pub(crate) fn write_and_close_duplicate(file: &File, content: &'static [u8]) -> std::io::Result<()> {
    let mut duplicate = file.try_clone()?;
    within("writing and closing", LIMIT, move || duplicate.write_all(content))
}

#[test]
fn a_file_that_several_programs_write_is_whole() {
    // With neither deletes nor overwrites allowed: its own object is all that a file replaces.
    let (client, _pod, served) = served("several-writers", &[]);
    for (name, script, content) in [
        (
            "group",
            "{ /bin/echo one; /bin/true; /bin/echo two; echo three; } > \"$1\"",
            "one\ntwo\nthree\n".to_owned(),
        ),
        ("kept", "exec 3>\"$1\"; echo a >&3; echo b >&3; /bin/echo c >&3", "a\nb\nc\n".to_owned()),
        (
            "errors",
            "sh -c 'echo out; /bin/echo err >&2; echo out' > \"$1\" 2>&1",
            "out\nerr\nout\n".to_owned(),
        ),
        (
            "fifty",
            "i=0; while [ $i -lt 50 ]; do /bin/echo line $i; i=$((i+1)); done > \"$1\"",
            (0..50)
                .map(|number| format!("line {number}"))
                .chain([String::new()])
                .collect::<Vec<_>>()
                .join("\n"),
        ),
        ("tee", "{ echo a; sleep 0.1; echo b; } | tee \"$1\" > /dev/null", "a\nb\n".to_owned()),
        ("forks", "for i in 1 2 3 4 5 6; do /bin/echo line & done > \"$1\"; wait", "line\n".repeat(6)),
        ("appends", "{ /bin/echo one; /bin/echo two; } >> \"$1\"", "one\ntwo\n".to_owned()),
    ] {
        succeeds(&served, name, script);
        eventually("all programs have closed it", || {
            String::from_utf8_lossy(&client.get("several-writers", name).unwrap()) == content
        });
        assert_eq!(String::from_utf8(served.read(name).unwrap()).unwrap(), content, "{name}");
    }
}

/// The mount process sees the ids of these programs, and so it leaves the upload of a file that is larger than what is kept in
/// memory to the last close. It cannot do that for `several_programs_of_a_pod_write_a_large_file`.
#[test]
fn a_large_file_that_several_programs_write_is_whole() {
    let (client, _pod, served) = served("large-writers", &[]);
    let zeros = |mib: usize| format!("dd if=/dev/zero bs=1M count={mib} status=none");
    for (name, first, second) in [("grows", 5, 6), ("begins-large", 20, 3)] {
        let script =
            format!("{{ {}; /bin/echo middle; {}; /bin/echo end; }} > \"$1\"", zeros(first), zeros(second));
        succeeds(&served, name, &script);
        let expected = [&vec![0; first << 20], &b"middle\n"[..], &vec![0; second << 20], b"end\n"].concat();
        assert!(client.get("large-writers", name).unwrap() == expected, "{name}");
        assert!(served.read(name).unwrap() == expected, "{name}");
    }
}

#[test]
fn what_was_closed_is_published_and_can_be_read_meanwhile() {
    let (client, _pod, served) = served("meanwhile", &[]);
    let file = served.touch("file", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&file, b"one ").unwrap();
    assert_eq!(client.get("meanwhile", "file").unwrap(), b"one ");
    assert_eq!(served.read("file").unwrap(), b"one ");
    let reader = served.touch("file", |path| File::open(path)).unwrap();
    write_and_close_duplicate(&file, b"two ").unwrap();
    within("closing", LIMIT, move || drop(reader));
    within("closing", LIMIT, move || (&file).write_all(b"three").map(|()| file)).map(drop).unwrap();
    assert_eq!(client.get("meanwhile", "file").unwrap(), b"one two three");
    assert_eq!(served.read("file").unwrap(), b"one two three");
}

#[test]
fn a_file_that_is_synced_can_be_continued() {
    let (client, _pod, served) = served("synced", &[]);
    let written = served.touch("file", |path| {
        let mut file = File::create(path)?;
        (0..5).try_for_each(|_| file.write_all(b"line\n").and_then(|()| file.sync_all()))
    });
    written.unwrap();
    assert_eq!(client.get("synced", "file").unwrap(), b"line\n".repeat(5));
}

/// Whether the mount process notices it at the write or the server at the upload.
#[test]
fn a_file_that_another_client_has_replaced_is_not_continued() {
    for (name, arguments) in
        [("fresh", vec![]), ("lazy", vec!["--metadata-ttl=indefinite", "--allow-overwrite"])]
    {
        let bucket = format!("replaced-{name}");
        let (client, _pod, served) = served(&bucket, &arguments);
        for (key, size) in [("small", 10), ("large", 10 << 20)] {
            let file = served.touch(key, |path| File::create(path)).unwrap();
            write_and_close_duplicate(&file, b"ours").unwrap();
            client.put(&bucket, key, b"theirs").unwrap();
            let continued = within("continuing", LIMIT, move || {
                (&file).write_all(&vec![b'o'; size]).and_then(|()| file.sync_all())
            });
            let errno = Errno::from_raw_os_error(continued.unwrap_err().raw_os_error().unwrap());
            assert!(matches!(errno, Errno::STALE | Errno::IO), "{name} {key}: {errno:?}");
            assert_eq!(client.get(&bucket, key).unwrap(), b"theirs", "{name} {key}");
        }
    }
}

#[test]
fn a_file_that_was_deleted_meanwhile_is_not_continued() {
    let (client, _pod, served) = served("deleted-meanwhile", &["--allow-delete"]);
    let file = served.touch("file", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&file, b"ours").unwrap();
    served.touch("file", |path| fs::remove_file(path)).unwrap();
    within("continuing", LIMIT, move || (&file).write_all(b"more").and_then(|()| file.sync_all()))
        .unwrap_err();
    assert_eq!(client.objects("deleted-meanwhile", "").unwrap(), [""; 0]);
}

fn relayed(name: &str, arguments: &[&str]) -> (MountpointPod, Served, Relay) {
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, name, arguments), "AWS_ENDPOINT_URL", &relay.url());
    let served = pod.mount(&with(request, "AWS_MAX_ATTEMPTS", "2")).unwrap();
    (pod, served, relay)
}

/// Here the shell opens the file and `dd` closes it, as other programs open and close files on different threads.
#[test]
fn the_program_that_closes_hears_of_the_failed_upload() {
    let client = bucket(ALICE, "closed-elsewhere");
    let (_pod, served, relay) = relayed("closed-elsewhere", &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "{ /bin/echo first; dd bs=64K status=none; } > \"$1\"", "sh"]).arg(served.path("file"));
    let mut shell = shell.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = shell.stdin.take().unwrap();
    input.write_all(b"second").unwrap();
    // The mount process accepts the write only after it has begun another upload.
    eventually("dd has written", || {
        served.touch("file", |path| fs::metadata(path).is_ok_and(|it| it.len() == 12))
    });
    relay.cut();
    let status = within("dd", LIMIT * 2, move || {
        drop(input);
        shell.wait().unwrap()
    });
    assert_eq!(status.code(), Some(1));
    relay.mend();
    let stored = client.get("closed-elsewhere", "file").unwrap();
    assert_eq!(stored, b"first\n", "what was published before stays");
}

#[test]
fn an_empty_file_is_complete_when_close_returns() {
    let (client, _pod, served) = served("empties", &["--allow-overwrite"]);
    served.touch("created", |path| File::create(path).map(drop)).unwrap();
    assert_eq!(client.get("empties", "created").unwrap(), b"");
    client.put("empties", "emptied", b"old").unwrap();
    // Shells close a duplicate first. Until the next close, what the file replaces stays.
    for (name, script) in
        [("touched", "touch \"$1\""), ("redirected", ": > \"$1\""), ("emptied", ": > \"$1\"")]
    {
        succeeds(&served, name, script);
        assert_eq!(client.get("empties", name).unwrap(), b"", "{name}");
    }
}

#[test]
fn close_reports_that_an_empty_file_cannot_be_created() {
    alone(|| {
        let client = bucket(ALICE, "no-empties");
        let (_pod, served, relay) = relayed("no-empties", &[]);
        let file = served.touch("file", |path| File::create(path)).unwrap();
        relay.cut();
        let closed = within("closing", LIMIT * 2, move || nix::unistd::close(file));
        assert_eq!(closed, Err(nix::errno::Errno::EIO));
        relay.mend();
        assert_eq!(client.objects("no-empties", "").unwrap(), [""; 0]);
    });
}

/// What replaces a file may take hours to write its first byte.
#[test]
fn a_file_stays_until_the_program_that_replaces_it_has_written() {
    let (client, _pod, served) = served("stays", &["--allow-overwrite"]);
    client.put("stays", "file", b"old").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec cat > \"$1\"", "sh"]).arg(served.path("file"));
    let mut shell = shell.stdin(Stdio::piped()).spawn().unwrap();
    eventually("cat has the file open", || {
        fs::read_link(format!("/proc/{}/fd/1", shell.id())).is_ok_and(|target| target.ends_with("file"))
            && fs::read_to_string(format!("/proc/{}/comm", shell.id())).is_ok_and(|name| name == "cat\n")
    });
    assert_eq!(client.get("stays", "file").unwrap(), b"old");
    let mut input = shell.stdin.take().unwrap();
    within("cat", LIMIT, move || {
        input.write_all(b"new").unwrap();
        drop(input);
        assert!(shell.wait().unwrap().success());
    });
    assert_eq!(client.get("stays", "file").unwrap(), b"new");
}

#[test]
fn the_length_of_a_file_that_is_being_written_cannot_be_changed() {
    let (client, _pod, served) = served("lengths", &[]);
    let written = served.touch("file", |path| {
        let mut file = File::create(path)?;
        file.write_all(b"content")?;
        file.set_len(7)?;
        for length in [0, 3, 20] {
            let refused = file.set_len(length).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()), "to {length}");
        }
        file.write_all(b" and more")
    });
    written.unwrap();
    assert_eq!(client.get("lengths", "file").unwrap(), b"content and more");
}

/// Kubernetes' own storage suite does `chmod u+x` on a volume whose files are executable already.
#[test]
fn attributes_that_a_file_has_already_can_be_set() {
    let (client, _pod, served) = served("same-attributes", &["--file-mode=0777", "--uid=1234", "--gid=2345"]);
    client.put("same-attributes", "file", b"x").unwrap();
    succeeds(
        &served,
        "file",
        "chmod u+x \"$1\"; chmod 777 \"$1\"; chown 1234:2345 \"$1\"; touch -r \"$1\" \"$1\"",
    );
    for change in
        ["chmod 600 \"$1\"", "chown 77 \"$1\"", "touch -d 2001-01-01 \"$1\"", "truncate -s 5 \"$1\""]
    {
        let output = run(&served, "file", change);
        assert_eq!(output.status.code(), Some(1), "{change}");
    }
    let metadata = served.touch("file", |path| fs::metadata(path).unwrap());
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.len()), (0o777, 1));
}
