//! Files that are continued after a close, while other programs read them.

use std::fs::{self, File};
use std::io::Write as _;
use std::thread;
use std::time::Duration;

use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::{LIMIT, eventually};
use s3_csi_tests::within;

use crate::files::served;
use crate::successors::behind;
use crate::survival::shell;

/// How long the server takes to answer: enough for a program to write meanwhile.
const SLOW: Duration = Duration::from_secs(3);

/// Programs that open a file for reading must not keep the one that writes it from going on.
#[test]
fn a_file_that_others_read_all_the_time_is_continued() {
    let (client, _pod, served) = served("continued-read", &["--allow-overwrite"]);
    let script = "cd \"$1\"
        for reader in 1 2 3; do (until [ -e stop ]; do cat log > /dev/null 2>&1; done) & done
        { for line in $(seq 60); do /bin/echo $line; done; } > log
        touch stop; wait; cat log";
    let read = shell(served.path(""), script);
    let lines: Vec<String> = (1..=60).map(|line| line.to_string()).collect();
    let expected = lines.join("\n") + "\n";
    assert_eq!(read, expected);
    assert_eq!(client.get("continued-read", "log").unwrap(), expected.as_bytes());
}

/// A shell closes a duplicate before the program writes. If another program opens the file then, it is published empty.
#[test]
fn a_file_that_is_being_published_empty_is_written() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (client, _pod, served) = behind(&faulty, "continued-empty", &["--allow-overwrite"]);
    client.put("continued-empty", "file", b"before").unwrap();
    let file = served.touch("file", |path| File::create(path)).unwrap();
    let file = within("closing a duplicate", LIMIT, move || {
        drop(file.try_clone().unwrap());
        file
    });
    faulty.plan(
        |_, line| {
            if line.starts_with("PUT /continued-empty/file") { Fault::Delay(SLOW) } else { Fault::None }
        },
    );
    let path = served.path("file");
    let reader = thread::spawn(move || fs::read(path));
    let is_published = || faulty.answered().iter().any(|line| line.starts_with("PUT /continued-empty/file"));
    eventually("the file is being published", is_published);
    faulty.plan(|_, _| Fault::None);
    let written = within("a write", LIMIT, move || {
        (&file).write_all(b"after")?;
        nix::unistd::close(file).map_err(std::io::Error::from)
    });
    written.unwrap();
    assert_eq!(client.get("continued-empty", "file").unwrap(), b"after");
    let read = within("a reader", LIMIT, move || reader.join().unwrap());
    assert!(read.is_ok_and(|read| read.is_empty() || read == b"after"));
}
