//! Files that a program still has open for writing, or has just closed, while others use their names.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::killer::{between_requests, kill};
use s3_csi_tests::mountpoint_pod::LIMIT;
use s3_csi_tests::within;

use crate::files::served;
use crate::successors::behind;
use crate::writers::write_and_close_duplicate;

const OPTIONS: &[&str] = &["--allow-delete", "--allow-overwrite", "--rename-by-copy"];
/// How long the server takes to answer: more than a program needs for its next system call.
const SLOW: Duration = Duration::from_secs(3);

fn close(file: File) {
    within("a close", LIMIT, move || drop(file));
}

/// What that program has written is no longer the file.
#[test]
fn a_file_is_read_while_a_program_has_the_longer_one_open_that_it_replaced() {
    let (_client, _pod, served) = served("lingering-longer", OPTIONS);
    let longer = served.touch("log", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&longer, b"a longer line\n").unwrap();
    served.write("log", "x\n").unwrap();
    assert_eq!(served.read("log").unwrap(), b"x\n");
    close(longer);
    assert_eq!(served.read("log").unwrap(), b"x\n");
}

#[test]
fn a_file_is_read_while_a_program_has_it_open_whose_upload_has_failed() {
    let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
    let (_client, _pod, served) = behind(&faulty, "lingering-failed", OPTIONS);
    let file = served.touch("file", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&file, b"published").unwrap();
    faulty.plan(|_, line| {
        let is_upload = line.starts_with("PUT /lingering-failed/file");
        if is_upload { Fault::Refuse(403, "AccessDenied") } else { Fault::None }
    });
    let (failed, file) = within("a failed upload", LIMIT, move || {
        let failed = (&file).write_all(b" and more").and_then(|()| file.sync_all());
        (failed, file)
    });
    failed.unwrap_err();
    assert_eq!(served.read("file").unwrap(), b"published");
    close(file);
}

/// The kernel's number of a file stays the same when a mount process dies, whatever another client does to the object.
#[test]
fn a_file_that_another_client_has_shortened_is_read_while_its_writer_survives() {
    let (client, pod, served) = served("lingering-shortened", OPTIONS);
    let file = served.touch("log", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&file, b"a longer line\n").unwrap();
    kill(&pod, between_requests);
    client.put("lingering-shortened", "log", b"x\n").unwrap();
    assert_eq!(served.read("log").unwrap(), b"x\n");
    close(file);
}

/// Empty objects cannot be told apart, so that a program goes on with the one that has taken the place of its own. The kernel
/// has a number for each of the two, and a size for each number.
#[test]
fn a_file_that_was_continued_in_the_place_of_another_is_read_whole() {
    let (client, _pod, served) = served("lingering-two", OPTIONS);
    let first = served.touch("file", |path| File::create(path)).unwrap();
    write_and_close_duplicate(&first, b"").unwrap();
    let size = served.touch("file", |path| {
        fs::remove_file(path)?;
        drop(File::create(path)?);
        fs::metadata(path).map(|it| it.len())
    });
    assert_eq!(size.unwrap(), 0);
    write_and_close_duplicate(&first, b"content").unwrap();
    assert_eq!(served.read("file").unwrap(), b"content");
    assert_eq!(client.get("lingering-two", "file").unwrap(), b"content");
    write_and_close_duplicate(&first, b" and more").unwrap();
    assert_eq!(served.read("file").unwrap(), b"content and more");
    close(first);
}

/// The kernel does not wait for the end of a file, and the object is emptied only then.
#[test]
fn a_file_that_was_emptied_and_closed_is_removed_or_renamed_at_once() {
    let remove = |path: &Path| fs::remove_file(path);
    let rename = |path: &Path| fs::rename(path, path.with_file_name("other"));
    for (name, act, left) in [
        ("lingering-removed", remove as fn(&Path) -> io::Result<()>, &[][..]),
        ("lingering-renamed", rename, &["other"]),
    ] {
        let faulty = Faulty::before("s3.test:80", |_, _| Fault::None);
        let (client, _pod, served) = behind(&faulty, name, OPTIONS);
        client.put(name, "file", b"before").unwrap();
        let upload = format!("PUT /{name}/file");
        faulty.plan(move |_, line| if line.starts_with(&upload) { Fault::Delay(SLOW) } else { Fault::None });
        let done = served.touch("file", move |path| {
            drop(File::create(path)?);
            act(path)
        });
        done.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(client.objects(name, "").unwrap(), left, "{name}");
        assert!(left.iter().all(|key| client.get(name, key).unwrap().is_empty()), "{name}");
    }
}
