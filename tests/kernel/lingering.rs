//! Files that a program still has open for writing, or has just closed, while others use their names.

use std::fs::File;
use std::io::Write as _;

use s3_csi_tests::faulty::{Fault, Faulty};
use s3_csi_tests::mountpoint_pod::LIMIT;
use s3_csi_tests::within;

use crate::files::served;
use crate::successors::behind;
use crate::writers::write_and_close_duplicate;

const OPTIONS: &[&str] = &["--allow-delete", "--allow-overwrite", "--rename-by-copy"];

fn close(file: File) {
    within("a close", LIMIT, move || drop(file));
}

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
