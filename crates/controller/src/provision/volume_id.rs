//! Volume ids, which name the bucket. They are derived from the name in the request, so that a repeated request finds the
//! bucket of the first one. An id of any other shape is not of this driver and is never deleted.

use std::fmt;

use contract::names::{DRIVER, is_namespace_name};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use uuid::Uuid;

use super::class::prefix::Prefix;

const MARK: &str = "csi-s3-";
/// S3 allows 63 characters; a dash, the mark and the UUID take 44 of them.
pub const LONGEST_NAME_PREFIX: usize = 19;

/// What happens to the objects when the volume is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum DeletionPolicy {
    #[default]
    Retain,
    DeleteObjects,
}

impl DeletionPolicy {
    pub const ALL: &[Self] = Self::VARIANTS;
}

/// The id of a volume that this driver created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeId {
    /// A bucket of its own; its name is the id.
    Bucket(String),
    /// A prefix of a bucket. The id has all that its deletion needs: `csi-s3-<uuid>/<policy>/<bucket>/<prefix>/`.
    Prefix { uuid: Uuid, deletion: DeletionPolicy, bucket: String, prefix: Prefix },
}

impl VolumeId {
    /// The bucket for a request of this name.
    pub fn bucket(name: &str, name_prefix: Option<&str>) -> Self {
        let dash = if name_prefix.is_some() { "-" } else { "" };
        Self::Bucket(format!("{}{dash}{MARK}{}", name_prefix.unwrap_or_default(), uuid_of(name)))
    }

    pub fn prefix(name: &str, deletion: DeletionPolicy, bucket: &str, prefix: Prefix) -> Self {
        Self::Prefix { uuid: uuid_of(name), deletion, bucket: bucket.to_owned(), prefix }
    }

    /// `None` if it is not an id of this driver.
    pub fn parse(id: &str) -> Option<Self> {
        if !id.contains('/') {
            let (front, uuid) = id.rsplit_once(MARK)?;
            own_uuid(uuid)?;
            let name_prefix = front.strip_suffix('-');
            let fits = name_prefix.map_or(front.is_empty(), is_name_prefix);
            return fits.then(|| Self::Bucket(id.to_owned()));
        }
        let mut parts = id.splitn(4, '/');
        let uuid = own_uuid(parts.next()?.strip_prefix(MARK)?)?;
        let deletion = parts.next()?.parse().ok()?;
        let bucket = parts.next().filter(|bucket| is_bucket(bucket))?.to_owned();
        let rest = parts.next()?;
        let prefix = Prefix::parse(rest).ok().filter(|prefix| prefix.as_str() == rest)?;
        Some(Self::Prefix { uuid, deletion, bucket, prefix })
    }

    /// Whether it is derived from this name.
    pub fn is_derived_from(&self, name: &str) -> bool {
        match self {
            Self::Bucket(bucket) => bucket.ends_with(&format!("{MARK}{}", uuid_of(name))),
            Self::Prefix { uuid, .. } => *uuid == uuid_of(name),
        }
    }

    /// For messages.
    pub fn place(&self) -> String {
        match self {
            Self::Bucket(bucket) => place(bucket, None),
            Self::Prefix { bucket, prefix, .. } => place(bucket, Some(prefix)),
        }
    }

    pub fn bucket_name(&self) -> &str {
        match self {
            Self::Bucket(bucket) | Self::Prefix { bucket, .. } => bucket,
        }
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket(bucket) => formatter.write_str(bucket),
            Self::Prefix { uuid, deletion, bucket, prefix } => {
                write!(formatter, "{MARK}{uuid}/{deletion}/{bucket}/{}", prefix.as_str())
            }
        }
    }
}

/// For messages: the prefix of the bucket, or all of it.
pub fn place(bucket: &str, prefix: Option<&Prefix>) -> String {
    match prefix {
        Some(prefix) => format!("prefix `{}` of bucket `{bucket}`", prefix.as_str()),
        None => format!("bucket `{bucket}`"),
    }
}

fn uuid_of(name: &str) -> Uuid {
    let ours = Uuid::new_v5(&Uuid::NAMESPACE_DNS, DRIVER.as_bytes());
    Uuid::new_v5(&ours, name.as_bytes())
}

/// In the spelling that we write. Buckets of the reference driver have random ones (version 4) and are deleted, too.
fn own_uuid(text: &str) -> Option<Uuid> {
    let uuid = Uuid::parse_str(text).ok()?;
    (matches!(uuid.get_version_num(), 4 | 5) && uuid.to_string() == text).then_some(uuid)
}

/// Lower-case letters, digits and dashes. No dots: they break certificates of virtual hosts.
pub fn is_name_prefix(text: &str) -> bool {
    text.len() <= LONGEST_NAME_PREFIX && is_namespace_name(text)
}

/// For admission policies: matches whatever [`is_name_prefix`] accepts, with dashes at the end, which classes may have.
pub const NAME_PREFIX_PATTERN: &str = "[a-z0-9][a-z0-9-]*";
/// For admission policies: matches whatever [`is_bucket`] accepts.
pub const BUCKET_PATTERN: &str = "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]";
/// For error texts.
pub const BUCKET_NAMES: &str = "bucket names have 3 to 63 lower-case letters, digits, dots or dashes";

/// Whether S3 accepts it as a bucket name.
pub fn is_bucket(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&text.len())
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || c == '-' || c == '.')
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;
    use std::sync::LazyLock;

    #[test]
    fn names_follow_from_the_request() {
        let id = VolumeId::bucket("pvc-1", None).to_string();
        assert_eq!(id, VolumeId::bucket("pvc-1", None).to_string());
        assert_ne!(id, VolumeId::bucket("pvc-2", None).to_string());
        assert_eq!((id.len(), &id[..7]), (43, "csi-s3-"));
        let longest = "p".repeat(LONGEST_NAME_PREFIX);
        let named = VolumeId::bucket("pvc-1", Some(&longest)).to_string();
        assert_eq!(named, format!("{longest}-{id}"));
        assert!(is_bucket(&named), "{named}");
    }

    #[test]
    fn only_our_own_shape_is_recognised() {
        let own = VolumeId::bucket("pvc-1", None).to_string();
        for id in [&own, &format!("team-a-{own}"), "csi-s3-2f7b2f4e-6a4f-4d53-9f0e-0d3c7a5b8e11"] {
            assert_eq!(VolumeId::parse(id).map(|id| id.to_string()).as_deref(), Some(id));
        }
        for id in [
            "",
            "my-bucket",
            "csi-s3-",
            "csi-s3-data",
            &own.to_uppercase(),
            &own.replace('-', ""),
            &format!("{own}x"),
            &format!("x{own}"),
            &format!("-{own}"),
            &format!("A-{own}"),
            &format!("{}-{own}", "p".repeat(20)),
            "csi-s3-00000000-0000-0000-0000-000000000000",
            &format!("{own}/delete-objects/bucket"),
            &format!("{own}/delete-objects/bucket/"),
            &format!("{own}/delete-objects/bucket//"),
            &format!("{own}/delete-objects/bucket/../"),
            &format!("{own}/delete-objects/bucket/a"),
            &format!("{own}/delete-objects/../a/"),
            &format!("{own}/other/bucket/a/"),
            &format!("x{own}/retain/bucket/a/"),
        ] {
            assert_eq!(VolumeId::parse(id), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            name in ".{0,40}", named in proptest::option::of("[a-z0-9]([a-z0-9-]{0,17}[a-z0-9])?"),
            bucket in "[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", prefix in "[a-z0-9]{1,5}(/[a-z0-9=]{1,5}){0,3}",
        ) {
            let id = VolumeId::bucket(&name, named.as_deref());
            prop_assert_eq!(VolumeId::parse(&id.to_string()), Some(id));
            for deletion in DeletionPolicy::ALL {
                let id = VolumeId::prefix(&name, *deletion, &bucket, Prefix::parse(&prefix).unwrap());
                prop_assert_eq!(VolumeId::parse(&id.to_string()), Some(id));
            }
        }

        #[test]
        fn patterns_match_whatever_is_accepted(text in "[a-z0-9.-]{0,5}|.{0,4}|[a-z0-9-]{60,65}", dashes in "-{0,2}") {
            static BUCKET: LazyLock<Regex> = LazyLock::new(|| Regex::new(&format!("^({BUCKET_PATTERN})$")).unwrap());
            static PREFIX: LazyLock<Regex> = LazyLock::new(|| Regex::new(&format!("^({NAME_PREFIX_PATTERN})$")).unwrap());
            prop_assert!(!is_bucket(&text) || BUCKET.is_match(&text));
            let name = format!("{text}{dashes}");
            prop_assert!(!is_name_prefix(&text) || PREFIX.is_match(&name));
        }

        /// Nothing that is taken for ours can mean the whole of a bucket that is not.
        #[test]
        fn no_text_reaches_outside(id in "(csi-s3-|[a-z0-9-]|/|\\.|delete-objects|retain){0,12}") {
            match VolumeId::parse(&id) {
                None => {}
                Some(VolumeId::Bucket(bucket)) => prop_assert!(bucket.contains(MARK)),
                Some(VolumeId::Prefix { prefix, .. }) => prop_assert!(prefix.as_str().len() > 1),
            }
        }
    }
}
