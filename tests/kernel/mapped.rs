//! Programs that map files. The kernel ends them with a signal if a page cannot be read.

use std::process::{Command, Stdio};

use s3_csi_tests::killer::{between_requests, while_killing};
use s3_csi_tests::mountpoint_pod::LIMIT;
use s3_csi_tests::within;

use crate::files::served;
use crate::survival::{LIFE, content};

/// Compares a mapped file with another one, again and again. Each time no page is in memory. Reads first page by page and then
/// with read-ahead. Prints how many page faults had to wait for the mount.
const COMPARE: &str = "
import mmap, os, resource, sys
expected = open(sys.argv[1], 'rb').read()
file = os.open(sys.argv[2], os.O_RDONLY)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
STEP = 1 << 16
for advice in (mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL) * 32:
    mapped.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    mapped.madvise(advice)
    for at in range(0, len(expected), STEP):
        assert mapped[at:at + STEP] == expected[at:at + STEP], at
print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
";

#[test]
fn mapped_files_are_whole_while_mount_processes_die() {
    const PAGES: usize = 1024;
    let (client, pod, served) = served("mapped", &[]);
    let all = content(PAGES * 4096, 8);
    client.put("mapped", "file", &all).unwrap();
    let expected = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(expected.path(), &all).unwrap();
    let (faults, kills) = while_killing(&pod, LIFE, between_requests, || {
        let mut program = Command::new("python3");
        program.args(["-c", COMPARE]).arg(expected.path()).arg(served.path("file")).stdin(Stdio::null());
        let output = within("a program with a mapped file", LIMIT, move || program.output().unwrap());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().parse::<usize>().unwrap()
    });
    assert!(kills > 0 && faults > 8 * PAGES, "{kills} kills, {faults} page faults");
}
