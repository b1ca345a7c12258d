//! A server that does not say whether it encrypted, as the one of the tests: only the writer fails.

use std::fs::{self, File};
use std::io::Write as _;

use rustix::io::Errno;
use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket};
use s3_csi_tests::within;
use xtask::s3::ALICE;

#[test]
fn encryption_that_is_not_confirmed_fails_only_the_writer() {
    bucket(ALICE, "unconfirmed").put("unconfirmed", "old", b"readable").unwrap();
    let pod = MountpointPod::start();
    let served = pod.serve(ALICE, "unconfirmed", &["--sse=AES256"]);
    let path = served.path("new");
    let written = within("writing", LIMIT, move || {
        let mut file = File::create(path)?;
        file.write_all(b"secret")?;
        file.sync_all()
    });
    assert_eq!(written.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    pod.logs("does not confirm the encryption");
    let path = served.path("old");
    assert_eq!(within("reading", LIMIT, move || fs::read(path)).unwrap(), b"readable");
}
