//! Parses `/proc/self/mountinfo`. The kernel escapes blanks, and mounts of other programs may have names that are not
//! UTF-8: neither may hide a mount of ours.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use contract::names::MOUNT_SOURCE;

const FUSE: &[u8] = b"fuse";

/// Major and minor number of a file system. All binds of one mount share it.
pub type Device = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub device: Device,
    pub point: PathBuf,
    pub read_only: bool,
    /// Whether it is a FUSE mount of this driver.
    pub bucket: bool,
}

/// In the order of mounting: the last mount at a point hides the earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(pub Vec<Mount>);

impl MountTable {
    /// Skips lines that it cannot parse.
    pub fn parse(bytes: &[u8]) -> Self {
        Self(bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// The mounts at exactly this point, the top one last.
    pub fn at<'a>(&'a self, point: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
        self.0.iter().filter(move |mount| mount.point == point)
    }

    /// The mount that processes see at this point.
    pub fn top(&self, point: &Path) -> Option<&Mount> {
        self.0.iter().rfind(|mount| mount.point == point)
    }

    /// The mount that processes see at this point, if it is one of this driver.
    pub fn top_bucket(&self, point: &Path) -> Option<&Mount> {
        self.top(point).filter(|top| top.bucket)
    }

    /// Whether nothing hides this mount, which must be one of this table.
    pub fn is_on_top(&self, mount: &Mount) -> bool {
        self.top(&mount.point).is_some_and(|top| std::ptr::eq(top, mount))
    }

    /// The other mounts of the file system that is on top at `point`.
    pub fn copies<'a>(&'a self, point: &'a Path) -> impl Iterator<Item = &'a Mount> {
        let device = self.top(point).map(|mount| mount.device);
        self.0.iter().filter(move |mount| Some(mount.device) == device && mount.point != point)
    }
}

/// `36 35 98:0 /root /point rw,noatime master:1 - fuse source rw`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    // Mount ID and parent ID.
    words.by_ref().nth(1)?;
    let (major, minor) = words.next().and_then(|device| split(device, b':'))?;
    // Root within the file system.
    words.next()?;
    let point = path(words.next()?);
    let options = words.next()?;
    // Optional fields end with a dash.
    words.by_ref().find(|word| *word == b"-")?;
    let kind = words.next()?;
    let source = words.next()?;
    Some(Mount {
        device: (number(major)?, number(minor)?),
        point,
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
        bucket: (kind == FUSE || kind.starts_with(b"fuse.")) && source == MOUNT_SOURCE.as_bytes(),
    })
}

fn split(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = bytes.iter().position(|byte| *byte == at)?;
    Some((&bytes[..index], &bytes[index + 1..]))
}

fn number(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Undoes the kernel's escapes: a backslash and three octal digits, like `\040`.
fn path(bytes: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|byte| (b'0'..=b'7').contains(byte)));
        match (first, digits.and_then(octal)) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                rest = &after[3..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain).into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        90 22 0:77 / /k/plugins/d/mnt/mp-1 rw,nosuid,nodev,noatime shared:5 - fuse mountpoint-s3 rw,user_id=0\n\
        91 22 0:77 / /k/pods/u/volumes/kubernetes.io~csi/pv\\040one/mount ro,noatime shared:5 master:2 - fuse mountpoint-s3 rw\n\
        92 22 0:78 / /other rw - fuse.sshfs host: rw\n\
        93 22 0:79 /\xff\xfe /odd\xff rw - tmpfs none rw\n\
        not a line\n";

    #[test]
    fn ours_are_found_among_the_others() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.0.len(), 5);
        let source = Path::new("/k/plugins/d/mnt/mp-1");
        let top = table.at(source).next_back().unwrap();
        assert_eq!((top.device, top.read_only, top.bucket), ((0, 77), false, true));
        let copies: Vec<&Mount> = table.copies(source).collect();
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].point, Path::new("/k/pods/u/volumes/kubernetes.io~csi/pv one/mount"));
        assert!(copies[0].read_only);
        assert!(table.top(Path::new("/other")).is_some() && table.top_bucket(Path::new("/other")).is_none());
        assert_eq!(table.copies(Path::new("/nothing")).count(), 0);
        assert!(table.is_on_top(copies[0]));
        let covered = MountTable(vec![copies[0].clone(); 2]);
        assert!(!covered.is_on_top(&covered.0[0]) && covered.is_on_top(&covered.0[1]));
    }

    #[test]
    fn the_kernels_own_table_is_understood() {
        let bytes = std::fs::read("/proc/self/mountinfo").unwrap();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(MountTable::parse(&bytes).0.len(), lines);
    }

    fn escape(name: &[u8]) -> Vec<u8> {
        name.iter()
            .flat_map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
                byte => vec![*byte],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_name_is_read_as_it_is(names in proptest::collection::vec(proptest::collection::vec(1_u8.., 1..20), 1..200)) {
            let line = |name: &Vec<u8>| {
                [b"7 1 0:9 / /", &escape(name)[..], b" rw - fuse mountpoint-s3 rw\n"].concat()
            };
            let table = MountTable::parse(&names.iter().flat_map(line).collect::<Vec<_>>());
            let read: Vec<Vec<u8>> = table.0.into_iter().map(|mount| mount.point.into_os_string().into_vec()).collect();
            let names: Vec<Vec<u8>> = names.into_iter().map(|name| [b"/".to_vec(), name].concat()).collect();
            prop_assert_eq!(read, names);
        }

        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            MountTable::parse(&bytes);
        }
    }

    #[test]
    fn ten_thousand_lines_are_read() {
        let line =
            |number: usize| format!("{number} 1 0:{number} / /m/{number} rw - fuse mountpoint-s3 rw\n");
        let table = MountTable::parse((0..10_000).map(line).collect::<String>().as_bytes());
        assert_eq!(table.0.len(), 10_000);
        assert_eq!(table.at(Path::new("/m/9999")).count(), 1);
    }
}
