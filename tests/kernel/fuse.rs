use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use s3_csi_tests::{cluster, within};
use xtask::served_file::{NAME, mount_device, receive_descriptor, send_descriptor, serve};

const LIMIT: Duration = Duration::from_secs(10);

fn mount_point() -> tempfile::TempDir {
    // Inside, /run is a tmpfs of this namespace.
    cluster();
    tempfile::tempdir_in("/run").unwrap()
}

fn read(path: PathBuf) -> std::io::Result<String> {
    within("reading a served file", LIMIT, move || fs::read_to_string(path))
}

#[test]
fn a_descriptor_that_came_over_a_socket_serves_the_mount() {
    let point = mount_point();
    let device = mount_device(point.path()).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(receive_descriptor(&there).unwrap(), "over the socket"));
    send_descriptor(&here, &device).unwrap();
    drop(device);
    assert_eq!(read(point.path().join(NAME)).unwrap(), "over the socket");
    assert_eq!(read(point.path().join("nothing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    unmount(point.path(), UnmountFlags::empty()).unwrap();
    within("the server's end", LIMIT, move || server.join().unwrap()).unwrap();
}

#[test]
fn a_mount_whose_descriptor_is_closed_gives_an_error_and_does_not_hang() {
    let point = mount_point();
    drop(mount_device(point.path()).unwrap());
    let error = read(point.path().join(NAME)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    unmount(point.path(), UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_message_without_a_descriptor_is_refused() {
    let (here, there) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut &here, b"d").unwrap();
    assert!(receive_descriptor(&there).unwrap_err().to_string().contains("no descriptor"));
}

#[test]
fn the_s3_server_is_there_without_kubernetes() {
    cluster();
    let client = xtask::s3::Client::new(xtask::s3::ENDPOINT, xtask::s3::BOB).unwrap();
    client.create_bucket("kernel-suite").unwrap();
    assert!(client.buckets().unwrap().contains(&"kernel-suite".to_owned()));
    client.delete_bucket("kernel-suite").unwrap();
}
