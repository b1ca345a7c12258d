//! Changes of a file's attributes. Objects have no attributes, so a request succeeds only if it changes nothing, or if the
//! mount's options say that such changes are ignored.

use fuser::{FileAttr, TimeOrNow};
use time::OffsetDateTime;

/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requested {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
}

/// What a request would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The file has all of it already.
    Nothing,
    /// Mode, owner or times.
    Attributes,
    /// The content.
    Length { from: u64, to: u64 },
}

impl Requested {
    pub(super) fn change_of(&self, current: &FileAttr) -> Change {
        match self.size {
            Some(size) if size != current.size => Change::Length { from: current.size, to: size },
            _ if self.has_attributes_of(current) => Change::Nothing,
            _ => Change::Attributes,
        }
    }

    fn has_attributes_of(&self, current: &FileAttr) -> bool {
        let same_time = |requested, current| match requested {
            None => true,
            Some(TimeOrNow::SpecificTime(time)) => time == current,
            Some(TimeOrNow::Now) => false,
        };
        self.mode.is_none_or(|mode| mode & PERMISSIONS == u32::from(current.perm))
            && self.uid.is_none_or(|uid| uid == current.uid)
            && self.gid.is_none_or(|gid| gid == current.gid)
            && same_time(self.atime, current.atime)
            && same_time(self.mtime, current.mtime)
    }
}

pub(super) fn moment(time: TimeOrNow) -> OffsetDateTime {
    match time {
        TimeOrNow::SpecificTime(time) => OffsetDateTime::from(time),
        TimeOrNow::Now => OffsetDateTime::now_utc(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn file() -> FileAttr {
        FileAttr {
            ino: 2,
            size: 10,
            blocks: 1,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH + Duration::from_secs(7),
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: fuser::FileType::RegularFile,
            perm: 0o750,
            nlink: 1,
            uid: 1000,
            gid: 2000,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    #[test]
    fn what_a_file_has_already_changes_nothing() {
        let same = Requested {
            mode: Some(0o100_750),
            uid: Some(1000),
            gid: Some(2000),
            size: Some(10),
            atime: None,
            mtime: Some(TimeOrNow::SpecificTime(file().mtime)),
        };
        assert_eq!(same.change_of(&file()), Change::Nothing);
        assert_eq!(Requested::default().change_of(&file()), Change::Nothing);
        let changes = [
            Requested { mode: Some(0o100_751), ..same },
            Requested { uid: Some(0), ..same },
            Requested { gid: Some(0), ..same },
            Requested { atime: Some(TimeOrNow::Now), ..same },
            Requested { mtime: Some(TimeOrNow::SpecificTime(SystemTime::UNIX_EPOCH)), ..same },
        ];
        for change in changes {
            assert_eq!(change.change_of(&file()), Change::Attributes, "{change:?}");
        }
        let cut = Requested { size: Some(0), mtime: Some(TimeOrNow::Now), ..same };
        assert_eq!(cut.change_of(&file()), Change::Length { from: 10, to: 0 });
    }
}
