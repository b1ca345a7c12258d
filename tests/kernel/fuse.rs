use std::fs;
use std::os::unix::fs::MetadataExt as _;

use s3_csi_tests::mountpoint_pod::{LIMIT, mount_fuse};
use s3_csi_tests::{cluster, within};

use crate::files::served;

#[test]
fn a_mount_whose_descriptor_is_closed_gives_an_error_and_does_not_hang() {
    let (point, device) = mount_fuse(false);
    drop(device);
    let path = point.path().join("file");
    let error = within("reading", LIMIT, move || fs::read(path)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    rustix::mount::unmount(point.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn the_s3_server_is_there_without_kubernetes() {
    cluster();
    let client = xtask::s3::Client::new(xtask::s3::ENDPOINT, xtask::s3::BOB).unwrap();
    client.create_bucket("kernel-suite").unwrap();
    assert!(client.buckets().unwrap().contains(&"kernel-suite".to_owned()));
    client.delete_bucket("kernel-suite").unwrap();
}

/// The tests mount as the node does. The kernel's default makes more requests of a large read.
#[test]
fn mounts_read_ahead() {
    let (_client, _pod, served) = served("ahead", &[]);
    let device = served.touch("", |path| fs::metadata(path).unwrap().dev());
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let kib = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(kib.trim(), "512");
}
