//! Who may do what with files and folders of a served bucket.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, Served, bucket};
use s3_csi_tests::within;
use xtask::s3::ALICE;

use crate::files::served;

fn kind(result: &std::io::Result<()>) -> Option<i32> {
    result.as_ref().err().and_then(std::io::Error::raw_os_error)
}

const NOT_PERMITTED: Option<i32> = Some(1);
const DENIED: Option<i32> = Some(13);
const READ_ONLY: Option<i32> = Some(30);

#[test]
fn overwriting_needs_its_option() {
    let (client, _pod, plain) = served("no-overwrite", &[]);
    client.put("no-overwrite", "file", b"old").unwrap();
    assert_eq!(kind(&plain.write("file", "new")), NOT_PERMITTED);
    assert_eq!(client.get("no-overwrite", "file").unwrap(), b"old");

    let (client, _pod, allowed) = served("overwrite", &["--allow-overwrite"]);
    client.put("overwrite", "file", b"old and longer").unwrap();
    allowed.write("file", "new").unwrap();
    assert_eq!(client.get("overwrite", "file").unwrap(), b"new");
    assert_eq!(allowed.read("file").unwrap(), b"new");
}

#[test]
fn deleting_needs_its_option() {
    let (client, _pod, plain) = served("no-delete", &[]);
    client.put("no-delete", "file", b"old").unwrap();
    let refused = plain.touch("file", |path| fs::remove_file(path));
    assert_eq!(kind(&refused), NOT_PERMITTED);
    assert_eq!(client.get("no-delete", "file").unwrap(), b"old");

    let (client, _pod, allowed) = served("delete", &["--allow-delete"]);
    client.put("delete", "folder/file", b"old").unwrap();
    allowed.touch("folder/file", |path| fs::remove_file(path)).unwrap();
    assert_eq!(client.objects("delete", "").unwrap(), [""; 0]);
    assert_eq!(allowed.read("folder/file").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn owners_and_modes_are_those_of_the_options() {
    let client = bucket(ALICE, "modes");
    client.put("modes", "folder/file", b"x").unwrap();
    let status = |arguments: &[&str], name: &str| {
        let pod = MountpointPod::start();
        let served = pod.serve(ALICE, "modes", arguments);
        served.touch(name, |path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o777)
        })
    };
    assert_eq!(status(&[], "folder"), (1000, 1000, 0o755));
    assert_eq!(status(&[], "folder/file"), (1000, 1000, 0o644));
    let options = &["--uid=2001", "--gid=2002", "--dir-mode=750", "--file-mode=640"];
    assert_eq!(status(options, "folder"), (2001, 2002, 0o750));
    assert_eq!(status(options, "folder/file"), (2001, 2002, 0o640));
}

/// Reads as another user, in a process of its own.
fn read_as(user: u32, group: u32, served: &Served, name: &str) -> bool {
    let path = served.path(name);
    let mut cat = Command::new("cat")
        .arg(path)
        .uid(user)
        .gid(group)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    within("cat", LIMIT, move || cat.wait().unwrap().success())
}

#[test]
fn other_users_are_allowed_as_far_as_the_modes_permit() {
    let client = bucket(ALICE, "users");
    client.put("users", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let arguments = ["--allow-other", "--gid=3000", "--dir-mode=770", "--file-mode=660"];
    let served = pod.serve(ALICE, "users", &arguments);
    assert!(read_as(4000, 3000, &served, "file"), "a member of the group");
    assert!(!read_as(4000, 4000, &served, "file"), "a stranger");
    assert!(read_as(1000, 1000, &served, "file"), "the owner");
}

/// What access(2) says, as `test` asks it in a process of another user.
#[test]
fn access_answers_by_owner_and_mode() {
    bucket(ALICE, "access").put("access", "folder/file", b"x").unwrap();
    let pod = MountpointPod::start();
    let arguments = ["--allow-other", "--gid=3000", "--dir-mode=751", "--file-mode=640"];
    let served = pod.serve(ALICE, "access", &arguments);
    let rights = |user: u32, group: u32, name: &str| {
        served.touch(name, move |path| {
            let may = |right: &str| Command::new("test").arg(right).arg(path).uid(user).gid(group).status();
            ["-r", "-w", "-x"].map(|right| may(right).unwrap().success())
        })
    };
    for (who, user, group, of_folder, of_file) in [
        ("the owner", 1000, 1000, [true, true, true], [true, true, false]),
        ("a member of the group", 4000, 3000, [true, false, true], [true, false, false]),
        ("a stranger", 4000, 4000, [false, false, true], [false, false, false]),
        ("root", 0, 0, [true, true, true], [true, true, false]),
    ] {
        assert_eq!(rights(user, group, "folder"), of_folder, "{who}");
        assert_eq!(rights(user, group, "folder/file"), of_file, "{who}");
    }
}

#[test]
fn only_root_and_the_owner_are_allowed_without_allow_other() {
    bucket(ALICE, "only-root").put("only-root", "file", b"x").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "only-root", &[]);
    assert_eq!(served.read("file").unwrap(), b"x");
    assert!(read_as(1000, 1000, &served, "file"), "the owner");
    assert!(!read_as(4000, 4000, &served, "file"));
}

#[test]
fn read_only_rejects_every_change() {
    let (client, _pod, served) = served("read-only", &["--read-only", "--allow-delete", "--allow-overwrite"]);
    client.put("read-only", "file", b"old").unwrap();
    assert_eq!(served.read("file").unwrap(), b"old");
    let errors = [
        served.write("new", "x"),
        served.write("file", "x"),
        served.touch("file", |path| fs::remove_file(path)),
        served.touch("folder", |path| fs::create_dir(path)),
    ];
    for error in &errors {
        assert!([READ_ONLY, DENIED, NOT_PERMITTED].contains(&kind(error)) && error.is_err(), "{error:?}");
    }
    assert_eq!(client.objects("read-only", "").unwrap(), ["file"]);
    assert_eq!(client.get("read-only", "file").unwrap(), b"old");
}

/// A cluster may give each namespace a range of users, none of which is in the image.
#[test]
fn a_mountpoint_pod_may_run_as_any_user() {
    const USER: u32 = 1_000_680_000;
    let client = bucket(ALICE, "any-user");
    let pod = MountpointPod::start_as(USER);
    let served = pod.serve(ALICE, "any-user", &["--allow-delete"]);
    served.write("file", "content").unwrap();
    assert_eq!(client.get("any-user", "file").unwrap(), b"content");
    assert_eq!(served.read("file").unwrap(), b"content");
    let owner = served.touch("file", |path| fs::metadata(path).map(|it| (it.uid(), it.gid())));
    assert_eq!(owner.unwrap(), (USER, USER), "that is said of every file");
}
