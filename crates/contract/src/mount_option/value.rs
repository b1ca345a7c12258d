//! What may follow a mount option.

use std::ops::RangeInclusive;
use std::path::{Component, Path};

use crate::names::AUTHORITY_IN_POD;
use crate::s3::{REGIONS, is_region};

/// What may follow an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Flag,
    Text,
    /// Several options of this name add up.
    Texts,
    Path,
    /// See [`is_region`].
    Region,
    /// A file below [`AUTHORITY_IN_POD`]: a volume's author must not have the mount process open anything else.
    Authority,
    Number(RangeInclusive<u64>),
    /// Permissions, octal.
    Mode,
    /// Ends in a slash.
    Prefix,
    /// Seconds, `minimal` or `indefinite`.
    Lifetime,
    OneOf(&'static [&'static str]),
    KmsKey,
    /// The node sets it, whatever the volume says.
    Overridden,
}

/// A century, which the mount process does not go beyond.
const LONGEST_LIFETIME_SECONDS: u64 = 100 * 365 * 24 * 60 * 60;

impl Value {
    /// The error says what is allowed.
    pub fn check(&self, text: &str) -> Result<(), String> {
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
                    || text.parse::<u64>().is_ok_and(|seconds| seconds <= LONGEST_LIFETIME_SECONDS)
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
    pub(crate) fn allowed(&self) -> String {
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
                format!("it must be `minimal`, `indefinite` or seconds, at most {LONGEST_LIFETIME_SECONDS}")
            }
            Self::OneOf(words) => format!("it must be one of {}", words.join(", ")),
            Self::KmsKey => "it must be the ARN of a key, not of an alias".to_owned(),
        }
    }
}

/// By its spelling: nothing in it may lead back up.
fn is_authority(file: &str) -> bool {
    let below = Path::new(file).strip_prefix(AUTHORITY_IN_POD).ok().map(Path::components);
    below.is_some_and(|mut parts| {
        parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    })
}
