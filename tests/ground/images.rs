use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use xtask::command::capture;

#[test]
fn two_builds_give_the_same_digests() {
    let first = capture(super::xtask().arg("image")).unwrap();
    // A changed time makes Cargo compile and link the program again.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/src/bin/testpod.rs");
    File::options().append(true).open(source).unwrap().set_modified(SystemTime::now()).unwrap();
    let second = capture(super::xtask().arg("image")).unwrap();
    assert_eq!(first, second);
    assert_eq!(first.matches("sha256:").count(), xtask::image::NAMES.len(), "{first}");
}
