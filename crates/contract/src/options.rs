//! The options of a mount and what each may be set to. The mount process reads them by the same table: what can be known
//! before anything is started is refused before.

use std::ops::RangeInclusive;
use std::path::{Component, Path};

use thiserror::Error;

use crate::arguments::Arguments;
use crate::names::AUTHORITY_IN_POD;

/// What may follow an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Flag,
    Text,
    /// Several options of this name add up.
    Texts,
    Path,
    /// It becomes part of a host name and of what is signed: a volume must not choose more than a region with it.
    Region,
    /// A file below [`AUTHORITY_IN_POD`]: a volume's author must not have the mount process open anything else.
    Authority,
    Number(RangeInclusive<u64>),
    /// Permissions, octal.
    Mode,
    /// Ends in a slash.
    Prefix,
    /// Seconds, or a word for them.
    Lifetime,
    OneOf(&'static [&'static str]),
    KmsKey,
    /// The node sets it, whatever the volume says.
    Overridden,
}

const IDS: Value = Value::Number(1..=u32::MAX as u64);
const FROM_ONE: Value = Value::Number(1..=u64::MAX);
/// The client takes no other parts, as S3 would not for uploads.
const PART_SIZES: Value = Value::Number((5 << 20)..=(5 << 30));
/// A century, which the mount process does not go beyond.
const LONGEST_LIFETIME: u64 = 100 * 365 * 24 * 60 * 60;

/// A label of a host name.
const LONGEST_REGION: usize = 63;
/// What may be one.
pub const REGIONS: &str = "regions have up to 63 letters, digits, dashes or underscores, such as us-east-1";

/// By their long names.
pub const OPTIONS: &[(&str, Value)] = &[
    ("prefix", Value::Prefix),
    ("region", Value::Region),
    ("force-path-style", Value::Flag),
    ("transfer-acceleration", Value::Flag),
    ("dual-stack", Value::Flag),
    ("requester-pays", Value::Flag),
    ("bucket-type", Value::OneOf(&["general-purpose", "directory"])),
    ("expected-bucket-owner", Value::Text),
    ("no-sign-request", Value::Flag),
    ("sse", Value::OneOf(&["aws:kms", "aws:kms:dsse", "AES256"])),
    ("sse-kms-key-id", Value::KmsKey),
    ("upload-checksums", Value::OneOf(&["crc32c", "crc64nvme", "off"])),
    ("infer-content-type", Value::Flag),
    ("read-only", Value::Flag),
    ("allow-delete", Value::Flag),
    ("allow-overwrite", Value::Flag),
    ("allow-root", Value::Flag),
    ("allow-other", Value::Flag),
    ("uid", IDS),
    ("gid", IDS),
    ("dir-mode", Value::Mode),
    ("file-mode", Value::Mode),
    ("metadata-ttl", Value::Lifetime),
    ("negative-metadata-ttl", Value::Lifetime),
    ("cache", Value::Overridden),
    ("max-cache-size", Value::Number(0..=u64::MAX)),
    ("maximum-throughput-gbps", FROM_ONE),
    ("max-threads", FROM_ONE),
    ("server-timeout", FROM_ONE),
    ("memory-target", Value::Number(512..=u64::MAX)),
    ("part-size", PART_SIZES),
    ("read-part-size", PART_SIZES),
    ("write-part-size", PART_SIZES),
    ("bind", Value::Texts),
    ("ca-bundle", Value::Authority),
    ("user-agent-prefix", Value::Overridden),
    ("debug", Value::Flag),
    ("debug-crt", Value::Flag),
    ("log-metrics", Value::Flag),
    ("no-log", Value::Flag),
    ("log-directory", Value::Path),
    ("otlp-endpoint", Value::Text),
    ("otlp-export-interval", FROM_ONE),
    (ATTEMPTS, FROM_ONE),
];

/// Becomes a variable of the mount process, not an option.
pub const ATTEMPTS: &str = "aws-max-attempts";

const SHORT_NAMES: &[(&str, &str)] = &[("d", "debug"), ("l", "log-directory")];

const EXCLUSIVE: &[(&str, &str)] = &[
    ("allow-root", "allow-other"),
    ("part-size", "read-part-size"),
    ("part-size", "write-part-size"),
    ("no-log", "log-directory"),
    ("no-log", "debug"),
    ("no-log", "debug-crt"),
    ("no-log", "log-metrics"),
];

/// The first has an effect only with the second.
const NEEDS: &[(&str, &str)] =
    &[("sse-kms-key-id", "sse"), ("max-cache-size", "cache"), ("otlp-export-interval", "otlp-endpoint")];

/// Each names the option, what is wrong and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    #[error("unknown mount option `{0}`: correct or remove it")]
    Unknown(String),
    #[error("invalid mount option `{option}` \"{value}\": {allowed}")]
    Value { option: &'static str, value: String, allowed: String },
    #[error("mount option `{0}` has no value: {1}")]
    Missing(&'static str, String),
    #[error("mount option `{0}` takes no value, and has \"{1}\": remove the value, or the option")]
    Unexpected(&'static str, String),
    #[error("mount option `{0}` is given more than once: keep one")]
    Repeated(&'static str),
    #[error("mount options `{0}` and `{1}` are mutually exclusive: remove one")]
    Exclusive(&'static str, &'static str),
    #[error("mount option `{0}` has no effect without `{1}`: add that, or remove it")]
    Needs(&'static str, &'static str),
    #[error(
        "mount option `sse-kms-key-id` cannot be used with `sse=AES256`: use `sse=aws:kms`, or remove the key"
    )]
    KeyWithoutKms,
}

/// Checks everything that a volume's options alone can tell. `cached` if there is a cache whatever the options say.
pub fn check(arguments: &Arguments, cached: bool) -> Result<(), OptionError> {
    let mut given: Vec<(&'static str, Option<&str>)> = Vec::new();
    for (key, text) in arguments.iter() {
        let (option, value) = find(key).ok_or_else(|| OptionError::Unknown(key.to_owned()))?;
        match (value, text) {
            (Value::Flag, None) | (Value::Overridden, _) => {}
            (Value::Flag, Some(text)) => return Err(OptionError::Unexpected(option, text.to_owned())),
            (value, None) => return Err(OptionError::Missing(option, value.allowed())),
            (value, Some(text)) => value.check(text).map_err(|allowed| OptionError::Value {
                option,
                value: text.to_owned(),
                allowed,
            })?,
        }
        let once = !matches!(value, Value::Texts | Value::Overridden);
        if once && given.iter().any(|(known, _)| *known == option) {
            return Err(OptionError::Repeated(option));
        }
        given.push((option, text));
    }
    let has = |option: &str| given.iter().any(|(known, _)| *known == option) || (cached && option == "cache");
    if let Some((one, other)) = EXCLUSIVE.iter().find(|(one, other)| has(one) && has(other)) {
        return Err(OptionError::Exclusive(one, other));
    }
    if let Some((option, needed)) = NEEDS.iter().find(|(option, needed)| has(option) && !has(needed)) {
        return Err(OptionError::Needs(option, needed));
    }
    if has("sse-kms-key-id") && given.contains(&("sse", Some("AES256"))) {
        return Err(OptionError::KeyWithoutKms);
    }
    Ok(())
}

/// The option of this name, long or short.
fn find(key: &str) -> Option<(&'static str, &'static Value)> {
    let long = SHORT_NAMES.iter().find(|(short, _)| *short == key).map_or(key, |(_, long)| *long);
    OPTIONS.iter().find(|(name, _)| *name == long).map(|(name, value)| (*name, value))
}

/// One value of one option, for whoever reads them one by one; the error says what is allowed.
pub fn check_value(option: &str, text: &str) -> Result<(), String> {
    find(option).map_or(Ok(()), |(_, value)| value.check(text))
}

pub fn is_region(text: &str) -> bool {
    let usual = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=LONGEST_REGION).contains(&text.len()) && text.chars().all(usual)
}

/// By its spelling: nothing in it may lead back up.
fn is_authority(file: &str) -> bool {
    let below = Path::new(file).strip_prefix(AUTHORITY_IN_POD).ok().map(Path::components);
    below.is_some_and(|mut parts| {
        parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    })
}

impl Value {
    fn check(&self, text: &str) -> Result<(), String> {
        let fits = match self {
            Self::Flag => false,
            Self::Text | Self::Texts | Self::Overridden => true,
            Self::Path => !text.is_empty(),
            // As if it were not given.
            Self::Region => text.is_empty() || is_region(text),
            Self::Authority => is_authority(text),
            Self::Number(range) => text.parse().is_ok_and(|number| range.contains(&number)),
            Self::Mode => u16::from_str_radix(text, 8).is_ok_and(|mode| mode <= 0o777),
            Self::Prefix => text.is_empty() || text.ends_with('/'),
            Self::Lifetime => {
                ["minimal", "indefinite"].contains(&text)
                    || text.parse::<u64>().is_ok_and(|seconds| seconds <= LONGEST_LIFETIME)
            }
            Self::OneOf(words) => words.contains(&text),
            Self::KmsKey => text.starts_with("arn:") && text.contains(":key"),
        };
        match self {
            _ if fits => Ok(()),
            Self::Prefix => Err(format!("{}: write `{text}/`", self.allowed())),
            _ => Err(self.allowed()),
        }
    }

    /// What it may be.
    fn allowed(&self) -> String {
        match self {
            Self::Flag => "it takes no value".to_owned(),
            Self::Text | Self::Texts | Self::Path | Self::Overridden => "it needs one".to_owned(),
            Self::Region => REGIONS.to_owned(),
            Self::Authority => {
                format!("it must be a file below {AUTHORITY_IN_POD}, where `tls.caCertConfigMap` is mounted")
            }
            Self::Number(range) if *range.end() == u64::MAX => {
                format!("it must be a number from {}", range.start())
            }
            Self::Number(range) => format!("it must be a number from {} to {}", range.start(), range.end()),
            Self::Mode => "it must be an octal number of at most 777, such as 770".to_owned(),
            Self::Prefix => "it must end in '/'".to_owned(),
            Self::Lifetime => {
                format!("it must be `minimal`, `indefinite` or seconds, at most {LONGEST_LIFETIME}")
            }
            Self::OneOf(words) => format!("it must be one of {}", words.join(", ")),
            Self::KmsKey => "it must be the ARN of a key, not of an alias".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &[&str]) -> Option<String> {
        check(&Arguments::parse(options), false).err().map(|error| error.to_string())
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (options, words) in [
            (
                &["uid=abc"][..],
                "invalid mount option `uid` \"abc\": it must be a number from 1 to 4294967295",
            ),
            (&["uid=0"], "\"0\""),
            (&["gid=4294967296"], "`gid` \"4294967296\""),
            (&["uid"], "`uid` has no value: it must be a number"),
            (&["dir-mode=1777"], "at most 777"),
            (&["file-mode=rw"], "octal number"),
            (&["prefix some"], "`prefix` \"some\": it must end in '/': write `some/`"),
            (&["memory-target=100"], "a number from 512"),
            (&["part-size=1024"], "from 5242880 to 5368709120"),
            (&["metadata-ttl=soon"], "`minimal`, `indefinite` or seconds"),
            (&["sse=rot13"], "one of aws:kms, aws:kms:dsse, AES256"),
            (&["sse=aws:kms", "sse-kms-key-id=alias/k"], "ARN of a key"),
            (&["sse=AES256", "sse-kms-key-id=arn:aws:kms:eu-1:1:key/k"], "cannot be used with `sse=AES256`"),
            (&["sse-kms-key-id=arn:aws:kms:eu-1:1:key/k"], "no effect without `sse`"),
            (&["max-cache-size=5"], "no effect without `cache`"),
            (&["ca-bundle="], "invalid mount option `ca-bundle` \"\""),
            (&["ca-bundle=/etc/passwd"], "a file below /etc/s3-csi/authority"),
            (&["region=a.example/#"], "invalid mount option `region` \"a.example/#\": regions have"),
            (&["server-timeout=0"], "a number from 1"),
            (&["allow-delete=true"], "`allow-delete` takes no value, and has \"true\""),
            (&["allow-deletes"], "unknown mount option `allow-deletes`"),
            (&["region=a", "region=b"], "`region` is given more than once"),
            (&["debug", "d"], "`debug` is given more than once"),
            (&["allow-root", "allow-other"], "`allow-root` and `allow-other` are mutually exclusive"),
            (&["no-log", "d"], "`no-log` and `debug` are mutually exclusive"),
            (&["aws-max-attempts=ten"], "`aws-max-attempts` \"ten\""),
        ] {
            let refused = refusal(options).unwrap_or_else(|| panic!("{options:?} is accepted"));
            assert!(refused.contains(words), "{options:?}: {refused}");
        }
    }

    #[test]
    fn what_can_be_is_accepted() {
        for options in [
            &["allow-delete", "prefix some/", "uid=1", "gid=4294967295", "dir-mode 0770", "file-mode=7"][..],
            &[
                "cache /tmp/x",
                "cache",
                "max-cache-size=0",
                "metadata-ttl=0",
                "negative-metadata-ttl=indefinite",
            ],
            &["bind eth0", "bind eth1", "region=", "prefix=", "l=/var/log", "d"],
            &["sse=aws:kms", "sse-kms-key-id=arn:aws:kms:eu-1:1:key/k", "read-part-size=5242880"],
            &["otlp-endpoint=http://x", "otlp-export-interval=1", "aws-max-attempts 4", "memory-target 512"],
        ] {
            assert_eq!(refusal(options), None, "{options:?}");
        }
        assert_eq!(check(&Arguments::parse(["max-cache-size=5"]), true), Ok(()), "the volume has a cache");
    }
}
