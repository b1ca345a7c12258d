//! What may follow a mount option.

use std::ops::RangeInclusive;
use std::path::{Component, Path};

use crate::names::AUTHORITY_IN_POD;
use crate::s3::{REGION_PATTERN, REGIONS, is_region};

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
            // An empty region counts as not given.
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

    /// A regular expression (RE2) for admission policies. It matches whatever [`check`](Self::check) accepts; it may match
    /// more, because it cannot compare numbers. Nothing, if every text is accepted, or none.
    pub fn pattern(&self) -> Option<String> {
        match self {
            Self::Flag | Self::Text | Self::Texts | Self::Overridden => None,
            Self::Path => Some("(?s:.+)".to_owned()),
            Self::Region => Some(format!("({REGION_PATTERN})?")),
            Self::Authority => {
                // Paths are compared by their components: `//` and `/./` are the same as `/`.
                Some(AUTHORITY_IN_POD.replace('/', "/[/.]*") + "/(?s:.+)")
            }
            Self::Number(range) => Some(number_pattern(range)),
            Self::Mode => Some(r"\+?0*[0-7]{1,3}".to_owned()),
            Self::Prefix => Some("(?s:.*/)?".to_owned()),
            Self::Lifetime => {
                Some(format!("minimal|indefinite|{}", number_pattern(&(0..=LONGEST_LIFETIME_SECONDS))))
            }
            Self::OneOf(words) => Some(words.join("|")),
            Self::KmsKey => Some("arn:(?s:(.*:)?key.*)".to_owned()),
        }
    }

    /// What it may be.
    pub fn allowed(&self) -> String {
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

/// As many digits as numbers of the range have, beside those that [`str::parse`] ignores.
fn number_pattern(range: &RangeInclusive<u64>) -> String {
    let digits = |number: &u64| number.to_string().len();
    let (fewest, most) = (digits(range.start()), digits(range.end()));
    if *range.start() == 0 {
        return format!(r"\+?0*[0-9]{{1,{most}}}");
    }
    format!(r"\+?0*[1-9][0-9]{{{},{}}}", fewest - 1, most - 1)
}

/// Judges the spelling alone: no part of it may lead back up.
fn is_authority(file: &str) -> bool {
    let below = Path::new(file).strip_prefix(AUTHORITY_IN_POD).ok().map(Path::components);
    below.is_some_and(|mut parts| {
        parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_option::MountOption;
    use proptest::prelude::*;
    use regex::Regex;
    use std::collections::BTreeMap;
    use std::sync::LazyLock;

    /// The patterns that the admission policies use.
    static PATTERNS: LazyLock<BTreeMap<MountOption, Regex>> = LazyLock::new(|| {
        let patterns =
            MountOption::ALL.iter().filter_map(|option| Some((*option, option.value().pattern()?)));
        patterns.map(|(option, text)| (option, Regex::new(&format!("^({text})$")).unwrap())).collect()
    });

    #[test]
    fn what_is_plainly_wrong_does_not_match() {
        for (option, wrong) in [
            (MountOption::Uid, &["x", "0", "00", "-1", "", "1 ", "42949672950"][..]),
            (MountOption::DirMode, &["rw", "888", "1777", "", "0x7"]),
            (MountOption::Prefix, &["a", "a/b"]),
            (MountOption::MetadataTtl, &["soon", "", "-1", "minimal "]),
            (MountOption::PartSize, &["1024", "8MiB", "53687091200"]),
            (MountOption::Sse, &["rot13", "", "aws:kms:ds", "aes256"]),
            (MountOption::SseKmsKeyId, &["alias/k", "arn:aws:kms:eu-1:1:alias/k"]),
            (MountOption::Region, &["a.example/#", "eu west"]),
            (MountOption::CaBundle, &["/etc/passwd", "/etc/s3-csi/authority", "authority/x", ""]),
            (MountOption::LogDirectory, &[""]),
        ] {
            let pattern = &PATTERNS[&option];
            for text in wrong {
                assert!(option.value().check(text).is_err(), "{option}={text} is accepted");
                assert!(!pattern.is_match(text), "{option}={text} matches {pattern}");
            }
        }
    }

    /// Texts that some option accepts, or nearly.
    fn texts() -> impl Strategy<Value = String> {
        let words = MountOption::ALL.iter().filter_map(|option| match option.value() {
            Value::OneOf(words) => Some(words),
            _ => None,
        });
        let words: Vec<&str> = words.flatten().copied().chain(["minimal", "indefinite", ""]).collect();
        prop_oneof![
            any::<String>(),
            any::<String>().prop_map(|text| text + "/"),
            proptest::sample::select(words).prop_map(str::to_owned),
            "[+]?0{0,3}[0-9]{1,21}",
            "[+]?0{0,9}[0-7]{1,4}",
            any::<u64>().prop_map(|number| number.to_string()),
            (0..=u32::MAX).prop_map(|number| number.to_string()),
            "[a-zA-Z0-9_-]{0,64}",
            "arn:(.{0,4}:)?key.{0,4}",
            "/{1,2}(\\./)?etc/{1,2}(\\./)?s3-csi/(\\./)?authority/{0,2}(\\./)?[a-z./]{0,6}",
        ]
    }

    proptest! {
        #[test]
        fn a_pattern_matches_whatever_is_accepted(text in texts()) {
            for (option, pattern) in &*PATTERNS {
                let is_accepted = option.value().check(&text).is_ok();
                prop_assert!(!is_accepted || pattern.is_match(&text), "{option}={text:?} does not match {pattern}");
            }
        }
    }
}
