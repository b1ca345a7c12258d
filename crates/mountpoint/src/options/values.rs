//! How the values of options are parsed, and errors reported.

use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{StringValueParser, TypedValueParser};
use contract::options::MountOption;
use mounter::handover::{Code, Refused};
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path};

/// The first paragraph of clap's message: option, value and what is allowed.
pub(super) fn refused(error: &clap::Error) -> Refused {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    Refused::new(Code::BadOption, lines.join("; "))
}

pub(super) fn parse_bucket(text: &str) -> Result<S3Path, String> {
    let parsed = if text.starts_with("s3://") {
        S3Path::parse_s3_uri(text)
    } else {
        Bucket::new(text).map(|bucket| S3Path::new(bucket, Prefix::empty()))
    };
    parsed.map_err(|error| error.to_string())
}

pub(super) fn parse_cache_bucket(text: &str) -> Result<Bucket, String> {
    let path = parse_bucket(text)?;
    if path.prefix.as_str().is_empty() { Ok(path.bucket) } else { Err("must not have a prefix".to_owned()) }
}

/// By the rules that the controller and the node apply before this process is started.
pub(super) fn checked<T>(option: MountOption) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        option.value().check(&text)?;
        text.parse::<T>().map_err(|error| error.to_string())
    })
}

pub(super) fn parse_mode(text: &str) -> Result<u16, String> {
    MountOption::DirMode.value().check(text)?;
    u16::from_str_radix(text, 8).map_err(|error| error.to_string())
}
