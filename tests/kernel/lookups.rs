//! What a name stands for, and how many requests it takes to find that out.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, statat};
use s3_csi_tests::mountpoint_pod::{LIMIT, eventually};
use s3_csi_tests::within;

use crate::files::relayed;
use crate::requests::methods;

/// One request says it, unless so many other names come before a folder of that name that a listing does not reach it.
#[test]
fn a_name_stands_for_what_the_bucket_has_of_it() {
    let (client, _pod, served, relay) = relayed("looked-up", &["--allow-overwrite"]);
    let put = |key: &str| client.put("looked-up", key, key.as_bytes()).unwrap();
    let is_folder = |name: &str| served.touch(name, |path| fs::metadata(path).map(|it| it.is_dir()).ok());
    for key in ["in/file", "in/file.txt", "in/folder/x", "in/only-1"] {
        put(key);
    }
    client.put("looked-up", "in/marked/", b"").unwrap();
    for key in ["in/late", "in/late-0", "in/late-1/x", "in/late.txt", "in/hid-1", "in/hid-2", "in/hid/x"] {
        put(key);
    }
    let expected = [
        ("in/file", Some(false)),
        ("in/folder", Some(true)),
        ("in/marked", Some(true)),
        ("in/only", None),
        ("in/onl", None),
        ("in/late", Some(false)),
        ("in/late-1", Some(true)),
        ("in/hid", Some(true)),
        ("in/hid-", None),
    ];
    for (name, stands_for) in expected {
        assert_eq!(is_folder(name), stands_for, "{name}");
    }
    assert_eq!(served.read("in/late").unwrap(), b"in/late");
    assert_eq!(served.read("in/lat").unwrap_err().kind(), ErrorKind::NotFound);
    let several = ["GET", "GET", "HEAD"];
    for (name, expected) in
        [("in/file", &["GET"][..]), ("in/folder", &["GET"]), ("in/onl", &["GET"]), ("in/late", &several)]
    {
        // What is known of the name from before answers for a moment, and so does what is known of the folder.
        eventually(name, || {
            is_folder("in");
            let made = methods(&relay, || {
                is_folder(name);
            });
            made == expected
        });
    }
}

/// As long as nothing is known of a name any more, it makes no difference what it stood for before.
#[test]
fn a_name_can_come_to_stand_for_something_else() {
    let (client, _pod, served, _relay) = relayed("looked-up-again", &["--allow-overwrite"]);
    let put = |key: &str| client.put("looked-up-again", key, key.as_bytes()).unwrap();
    let is_folder = |name: &str| served.touch(name, |path| fs::metadata(path).map(|it| it.is_dir()).ok());
    for key in ["in/keeper", "in/file", "in/folder/x"] {
        put(key);
    }
    assert_eq!(["in/file", "in/folder", "in/nothing"].map(is_folder), [Some(false), Some(true), None]);
    for key in ["in/file", "in/folder/x"] {
        client.delete("looked-up-again", key).unwrap();
    }
    for key in ["in/file/x", "in/folder", "in/nothing"] {
        put(key);
    }
    eventually("a folder instead of a file", || is_folder("in/file") == Some(true));
    eventually("a file instead of a folder", || is_folder("in/folder") == Some(false));
    eventually("a file instead of nothing", || is_folder("in/nothing") == Some(false));
    assert_eq!(served.read("in/folder").unwrap(), b"in/folder");
    served.write("in/nothing", "written here").unwrap();
    assert_eq!(client.get("looked-up-again", "in/nothing").unwrap(), b"written here");
    for key in ["in/keeper", "in/file/x", "in/folder", "in/nothing"] {
        client.delete("looked-up-again", key).unwrap();
    }
    eventually("the folder is gone with what was in it", || is_folder("in").is_none());
}

/// A program whose working directory the folder is does not look that up again, and it may be known no longer.
#[test]
fn names_are_looked_up_in_a_folder_that_a_program_has_open() {
    // Fewer than make a page worth a request.
    const FILES: usize = 10;
    let (client, _pod, served, relay) = relayed("looked-up-within", &[]);
    for number in 0..FILES {
        client.put("looked-up-within", &format!("outer/inner/{number}"), b"content").unwrap();
    }
    let folder = Arc::new(served.touch("outer/inner", |path| File::open(path).unwrap()));
    // Longer than anything that is known is believed.
    thread::sleep(Duration::from_secs(2));
    for number in 0..FILES {
        let folder = Arc::clone(&folder);
        let look = move || statat(&*folder, number.to_string(), AtFlags::empty());
        assert_eq!(within("a lookup", LIMIT, look).unwrap().st_size, 7);
    }
    let mut heads = relay.requests();
    // The kernel asks for the folder itself once its attributes are too old.
    heads.retain(|it| it.starts_with("HEAD /looked-up-within/") && !it.ends_with("/inner"));
    assert_eq!(heads, [""; 0]);
}
