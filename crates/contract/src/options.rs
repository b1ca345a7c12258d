//! Which mount options are valid together, so that a volume that the mount process would refuse is refused before anything is
//! started. The mount process has these rules again, as those of its flags; its tests compare the two.

use thiserror::Error;

use crate::arguments::Arguments;
pub use crate::mount_option::{IgnoredOption, MountOption, TERMINAL_OPTIONS, Value};
pub use crate::s3::{REGIONS, is_region};

use MountOption as Opt;

/// Removes the options that volumes must not use, and says which those were. Options for interactive use go without
/// mention.
pub fn take_ignored(arguments: &mut Arguments) -> Vec<IgnoredOption> {
    for option in TERMINAL_OPTIONS {
        arguments.remove(option);
    }
    IgnoredOption::ALL.iter().copied().filter(|option| arguments.remove(option)).collect()
}

pub const EXCLUSIVE: &[(Opt, Opt)] = &[
    (Opt::AllowRoot, Opt::AllowOther),
    (Opt::PartSize, Opt::ReadPartSize),
    (Opt::PartSize, Opt::WritePartSize),
    (Opt::NoLog, Opt::LogDirectory),
    (Opt::NoLog, Opt::Debug),
    (Opt::NoLog, Opt::DebugCrt),
    (Opt::NoLog, Opt::LogMetrics),
    // The S3 client copies objects without asking for their encryption.
    (Opt::RenameByCopy, Opt::Sse),
];

/// The first has an effect only with the second.
const NEEDS: &[(Opt, Opt)] = &[
    (Opt::SseKmsKeyId, Opt::Sse),
    (Opt::MaxCacheSize, Opt::Cache),
    (Opt::OtlpExportInterval, Opt::OtlpEndpoint),
    // A renamed file is deleted under its old name.
    (Opt::RenameByCopy, Opt::AllowDelete),
];

/// Each names the option, what is wrong and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    #[error("unknown mount option `{0}`: correct or remove it")]
    Unknown(String),
    #[error("invalid mount option `{option}` \"{value}\": {allowed}")]
    Value { option: MountOption, value: String, allowed: String },
    #[error("mount option `{0}` has no value: {1}")]
    Missing(MountOption, String),
    #[error("mount option `{0}` takes no value, and has \"{1}\": remove the value, or the option")]
    Unexpected(MountOption, String),
    #[error("mount option `{0}` is given more than once: keep one")]
    Repeated(MountOption),
    #[error("mount options `{0}` and `{1}` are mutually exclusive: remove one")]
    Exclusive(MountOption, MountOption),
    #[error("mount option `{0}` has no effect without `{1}`: add `{1}`, or remove `{0}`")]
    Needs(MountOption, MountOption),
    #[error(
        "mount option `sse-kms-key-id` cannot be used with `sse=AES256`: use `sse=aws:kms`, or remove the key"
    )]
    KeyWithoutKms,
}

/// Checks everything that can be known from a volume's options. `cached` if its attributes ask for a cache.
pub fn check(arguments: &Arguments, cached: bool) -> Result<(), OptionError> {
    let mut given: Vec<(MountOption, Option<&str>)> = Vec::new();
    for (key, text) in arguments.iter() {
        let option = MountOption::find(key).ok_or_else(|| OptionError::Unknown(key.to_owned()))?;
        let value = option.value();
        match (&value, text) {
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
    let has =
        |option: Opt| given.iter().any(|(known, _)| *known == option) || (cached && option == Opt::Cache);
    if let Some((one, other)) = EXCLUSIVE.iter().find(|(one, other)| has(*one) && has(*other)) {
        return Err(OptionError::Exclusive(*one, *other));
    }
    if let Some((option, needed)) = NEEDS.iter().find(|(option, needed)| has(*option) && !has(*needed)) {
        return Err(OptionError::Needs(*option, *needed));
    }
    if has(Opt::SseKmsKeyId) && given.contains(&(Opt::Sse, Some("AES256"))) {
        return Err(OptionError::KeyWithoutKms);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            (&["rename-by-copy"], "`rename-by-copy` has no effect without `allow-delete`"),
            (
                &["rename-by-copy", "allow-delete", "sse=AES256"],
                "`rename-by-copy` and `sse` are mutually exclusive",
            ),
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
            &[
                "allow-delete",
                "rename-by-copy",
                "prefix some/",
                "uid=1",
                "gid=4294967295",
                "dir-mode 0770",
                "file-mode=7",
            ][..],
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

    #[test]
    fn ignored_options_are_removed_and_named() {
        let mut arguments = Arguments::parse([
            "endpoint-url=http://a",
            "--Endpoint-URL http://b",
            "-o x",
            "uid=1",
            "foreground",
        ]);
        assert_eq!(take_ignored(&mut arguments), [IgnoredOption::EndpointUrl, IgnoredOption::Kernel]);
        assert_eq!(arguments.render(), ["--uid=1"]);
        assert!(take_ignored(&mut arguments).is_empty());
    }

    proptest! {
        #[test]
        fn no_spelling_gets_past_the_policy(
            key in proptest::sample::select(IgnoredOption::ALL),
            upper in proptest::collection::vec(any::<bool>(), 20),
            dashes in "-{0,3}",
            separator in "( {0,2}= {0,2}|[ \t]{1,3}|)",
            value in "[a-z]{0,5}",
            blanks in " {0,2}",
        ) {
            let key: String = key.as_ref().chars().zip(upper).map(|(c, up)| if up { c.to_ascii_uppercase() } else { c }).collect();
            let value = if separator.is_empty() { String::new() } else { value };
            let mut arguments = Arguments::parse([format!("{blanks}{dashes}{key}{separator}{value}{blanks}")]);
            take_ignored(&mut arguments);
            prop_assert_eq!(arguments, Arguments::default());
        }
    }
}
