//! One line of the journal. A newer release reads what an older one has written: a variant may be added, none may change.

use serde::{Deserialize, Serialize};

/// The names are short because there is a line for every file that the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// The mount has begun.
    Begin(Begin),
    /// Numbers of inodes and handles up to these were used.
    #[serde(rename = "Max")]
    Highest { inode: u64, handle: u64 },
    /// The kernel got an inode in an answer.
    #[serde(rename = "N")]
    Inode(u64, Node),
    /// It got the same inode again.
    #[serde(rename = "L")]
    LookedUp(u64),
    /// It has forgotten that many of these times.
    #[serde(rename = "F")]
    Forgotten(u64, u64),
    /// The inode's file was uploaded, and is this version of its object now.
    #[serde(rename = "U")]
    Uploaded(u64, Version),
    /// The inode's name means something else now.
    #[serde(rename = "S")]
    Stale(u64),
    /// A name was removed from a directory.
    #[serde(rename = "R")]
    Removed(u64, String),
    /// A name was moved from a directory and name to another.
    #[serde(rename = "M")]
    Renamed(u64, String, u64, String),
    /// The kernel got the number of an open file or directory.
    #[serde(rename = "O")]
    Opened(u64, Open),
    /// A program has closed the open file, and others may use it as if it were not open.
    #[serde(rename = "I")]
    Idle(u64),
    /// It is used again.
    #[serde(rename = "B")]
    Busy(u64),
    /// Bytes of the open file were acknowledged that are in no spool.
    Unspooled(u64),
    /// All that was written to the open file belongs to this upload, which is being completed.
    #[serde(rename = "E")]
    Completing(u64, Box<Completion>),
    /// All that was written to the open file is this object.
    #[serde(rename = "P")]
    Published(u64, PublishedObject),
    /// The kernel has been given these entries of the open directory, from this offset on.
    #[serde(rename = "D")]
    Listed(u64, u64, Vec<String>),
    #[serde(rename = "C")]
    Closed(u64),
    /// A request that the kernel sent again, because a predecessor had died with it, was begun.
    #[serde(rename = "A")]
    Retried(u64),
    /// A multipart upload has begun on the server: its path, with its id.
    UploadBegun(String),
    /// It was completed or aborted.
    UploadEnded(String),
    /// The process has left the mount to another one: what the kernel sends again has killed nothing.
    Left,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The kernel's first request, which it sends once in the life of a mount.
    pub(crate) init: Vec<u8>,
    /// The region in which the bucket was found.
    pub(crate) region: String,
}

/// Which content an object has: a hash of its `ETag`. Zero if there is no object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version(u64);

impl Version {
    /// FNV-1a: must not change between releases.
    pub(crate) fn of(etag: Option<&str>) -> Self {
        let hash = |etag: &str| {
            etag.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        Self(etag.map_or(0, |etag| hash(etag) | 1))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    #[serde(rename = "p")]
    pub(crate) parent: u64,
    #[serde(rename = "n")]
    pub(crate) name: String,
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) is_directory: bool,
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    pub(crate) version: Version,
    /// Created here, and not in the bucket yet.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) is_local: bool,
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) is_stale: bool,
    /// How often the kernel has looked it up and not forgotten it.
    #[serde(rename = "c", default = "one", skip_serializing_if = "is_one")]
    pub(crate) lookups: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Access {
    #[serde(rename = "r")]
    Read,
    #[serde(rename = "w")]
    Write,
    /// Written by the library alone: an object in a directory bucket, to which bytes are appended.
    #[serde(rename = "a")]
    Append,
    #[serde(rename = "l")]
    List,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    #[serde(rename = "i")]
    pub(crate) ino: u64,
    #[serde(rename = "f")]
    pub(crate) flags: i32,
    #[serde(rename = "p")]
    pub(crate) pid: u32,
    #[serde(rename = "a")]
    pub(crate) access: Access,
    /// The version that is read, or that was there when the file was opened for writing.
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    pub(crate) version: Version,
    /// The key that is written.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub(crate) key: String,
    /// There was no object when it was opened for writing.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(crate) creates: bool,
    /// The number of the request, by which the kernel asks for the same again.
    #[serde(rename = "u")]
    pub(crate) unique: u64,
}

impl Open {
    /// Open for reading; version and key are not known yet.
    pub(crate) fn new(ino: u64, flags: i32, pid: u32, unique: u64) -> Self {
        let (access, version) = (Access::Read, Version::default());
        Self { ino, flags, pid, access, version, key: String::new(), creates: false, unique }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedObject {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) etag: String,
    pub(crate) length: u64,
}

/// What another process needs to complete an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Completion {
    /// The path of the upload on the server, with its id.
    #[serde(rename = "u")]
    pub(crate) upload: String,
    /// Bytes of all its parts.
    #[serde(rename = "l")]
    pub(crate) length: u64,
    /// The object that there was before.
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    pub(crate) before: Version,
    #[serde(flatten)]
    pub(crate) terms: Terms,
}

/// On which terms an upload becomes an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// It replaces no object.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(crate) creates: bool,
    /// It replaces the object with this `ETag`, and no other.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) replaces: Option<String>,
    /// The checksums that its parts were sent with.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) checksums: Option<Checksums>,
    /// The server has to confirm it.
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub(crate) encryption: Encryption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Checksums {
    Crc32c,
    Crc64nvme,
}

/// How objects are to be encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Encryption {
    pub(crate) kind: Option<String>,
    pub(crate) kms_key: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_one(value: &u64) -> bool {
    *value == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_stay_as_they_are() {
        let node = Node {
            parent: 1,
            name: "ü.txt".into(),
            is_directory: false,
            version: Version::of(Some("\"9a0364b9e99bb480dd25e1f0284c8555\"")),
            is_local: false,
            is_stale: false,
            lookups: 1,
        };
        let open = Open::new(2, 0, 7, 64);
        let terms = Terms { replaces: Some("\"e\"".into()), ..Terms::default() };
        let completion =
            Completion { upload: "/b/k?uploadId=1".into(), length: 9, terms, ..Completion::default() };
        let lines = [
            (Record::Inode(2, node), r#"{"N":[2,{"p":1,"n":"ü.txt","v":10477154784487826637}]}"#),
            (Record::LookedUp(2), r#"{"L":2}"#),
            (Record::Forgotten(2, 3), r#"{"F":[2,3]}"#),
            (Record::Opened(1, open), r#"{"O":[1,{"i":2,"f":0,"p":7,"a":"r","u":64}]}"#),
            (
                Record::Completing(1, Box::new(completion)),
                r#"{"E":[1,{"u":"/b/k?uploadId=1","l":9,"r":"\"e\""}]}"#,
            ),
            (Record::Listed(3, 2, vec!["a".into(), "b".into()]), r#"{"D":[3,2,["a","b"]]}"#),
        ];
        for (record, line) in lines {
            assert_eq!(serde_json::to_string(&record).unwrap(), line);
            assert_eq!(serde_json::from_str::<Record>(line).unwrap(), record);
        }
    }
}
