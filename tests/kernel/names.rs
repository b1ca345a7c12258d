//! Names, modes and attributes of files that programs may expect to be kept.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::io::Errno;

use crate::files::served;

/// The longest name that other file systems, and the server of the tests, accept, in bytes.
const LONGEST: usize = 255;

#[test]
fn a_name_is_the_same_at_both_ends() {
    let (client, _pod, served) = served("names", &[]);
    let longest = "n".repeat(LONGEST);
    let names = [
        "emoji-🪣",
        "accent-é",
        "at@ plus+ percent% amp& equals=",
        "100%25",
        "trailing blank ",
        " leading blank",
        "tab\there",
        "new\nline",
        "back\\slash",
        "quote\"'`$(x)",
        "...",
        ".hidden",
        "-dash",
        "ends.",
        longest.as_str(),
    ];
    for name in names {
        served.write(name, name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(client.get("names", name).unwrap(), name.as_bytes(), "{name:?}");
        let theirs = format!("theirs/{name}");
        client.put("names", &theirs, name.as_bytes()).unwrap();
        assert_eq!(served.read(&theirs).unwrap(), name.as_bytes(), "{name:?}");
    }
    let mut sorted: Vec<String> = names.map(str::to_owned).into();
    sorted.sort();
    assert_eq!(served.list("theirs").unwrap(), sorted);
}

/// Modes are those of the mount, whatever a program wishes for what it creates.
#[test]
fn the_mode_of_a_new_folder_or_file_is_that_of_the_mount() {
    let (_client, _pod, served) = served("created-modes", &[]);
    let modes = served.touch("", |root| {
        let mkdir =
            std::process::Command::new("mkdir").args(["-m", "755", "folder"]).current_dir(root).status();
        assert!(mkdir.unwrap().success());
        let make = "umask 077; echo x > file";
        assert!(
            std::process::Command::new("sh").args(["-c", make]).current_dir(root).status().unwrap().success()
        );
        ["folder", "file"].map(|name| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777)
    });
    assert_eq!(modes, [0o755, 0o644]);
}

#[test]
fn extended_attributes_are_not_supported() {
    let (client, _pod, served) = served("xattr", &[]);
    client.put("xattr", "file", b"x").unwrap();
    let (set, get) = served.touch("file", |path| {
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(path, "user.a", b"b", flags).unwrap_err();
        (set, rustix::fs::getxattr(path, "user.a", &mut [0; 16]).unwrap_err())
    });
    assert_eq!((set, get), (Errno::NOTSUP, Errno::NOTSUP));
}
