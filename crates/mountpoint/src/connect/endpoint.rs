//! The address of the bucket, from the options of the volume and the endpoint of the installation. What has no address, or is
//! an option of Amazon at another server, is refused before any request: the S3 client's error would not name the option.

use contract::s3::{REGIONS, is_amazon, is_region};
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::{AddressingStyle, Allocator, EndpointConfig, Uri};

use crate::options::Options;

/// Digits of an account of Amazon. Other servers have accounts of other forms.
const ACCOUNT_DIGITS: usize = 12;

pub(super) fn endpoint_config(
    options: &Options,
    bucket: &str,
    region: &str,
    url: Option<&str>,
) -> Result<EndpointConfig, Refused> {
    check_region(region)?;
    check_owner(options, url)?;
    let style = if options.force_path_style { AddressingStyle::Path } else { AddressingStyle::Automatic };
    let mut config = EndpointConfig::new(region)
        .addressing_style(style)
        .use_accelerate(options.transfer_acceleration)
        .use_dual_stack(options.dual_stack);
    if let Some(url) = url {
        config = config.endpoint(parse(url)?);
    }
    match config.resolve_for_bucket(bucket) {
        Ok(_) => Ok(config),
        Err(error) => {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Err(without_address(options, bucket, region, reason.trim_end_matches('.')))
        }
    }
}

/// The region becomes part of a host name and of what is signed. The volume, or a server that redirects, must not choose
/// more than a region with it.
fn check_region(region: &str) -> Result<(), Refused> {
    let invalid = || Refused::new(Code::BadOption, format!("invalid `region` {region:?}: {REGIONS}"));
    is_region(region).then_some(()).ok_or_else(invalid)
}

fn check_owner(options: &Options, url: Option<&str>) -> Result<(), Refused> {
    let is_account =
        |owner: &str| owner.len() == ACCOUNT_DIGITS && owner.bytes().all(|byte| byte.is_ascii_digit());
    match options.expected_bucket_owner.as_deref() {
        Some(owner) if is_amazon(url) && !is_account(owner) => {
            let message = format!(
                "invalid `expected-bucket-owner` {owner:?}: an account of Amazon has {ACCOUNT_DIGITS} digits"
            );
            Err(Refused::new(Code::BadOption, message))
        }
        _ => Ok(()),
    }
}

fn parse(url: &str) -> Result<Uri, Refused> {
    let bad = |reason: &str| {
        Refused::new(
            Code::BadOption,
            format!("invalid endpoint `{url}`: {reason}, such as https://s3.example.com"),
        )
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(bad("it must be a URL that starts with http:// or https://"));
    }
    Uri::new_from_str(&Allocator::default(), url).map_err(|_| bad("it must be a URL"))
}

/// `reason` comes from Amazon's rules for addresses.
fn without_address(options: &Options, bucket: &str, region: &str, reason: &str) -> Refused {
    let (code, cause, remedy) = match (options.transfer_acceleration, options.dual_stack) {
        (true, dual_stack) => (
            Code::BadOption,
            if dual_stack { "`transfer-acceleration` with `dual-stack`" } else { "`transfer-acceleration`" },
            "it is only for Amazon, with an empty `s3.endpointUrl` and `s3.addressing: virtual`; remove the option",
        ),
        (false, true) => (
            Code::BadOption,
            "`dual-stack`",
            "it is only for Amazon, with an empty `s3.endpointUrl`; remove the option",
        ),
        (false, false) => (Code::BadBucket, "`bucketName`", "correct it, or the region"),
    };
    let message =
        format!("bucket `{bucket}` has no address in region `{region}` with {cause} ({reason}): {remedy}");
    Refused::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Invocation;

    fn host(arguments: &[&str], bucket: &str, url: Option<&str>) -> Result<String, Refused> {
        let all = ["s3-csi-mountpoint", "bucket", "/dev/fd/0"].iter().chain(arguments);
        let Ok(Invocation::Serve(options)) = Options::read(all.map(std::ffi::OsString::from)) else {
            panic!("{arguments:?}")
        };
        let resolved =
            endpoint_config(&options, bucket, "eu-west-1", url)?.resolve_for_bucket(bucket).unwrap();
        Ok(resolved.uri().unwrap().host_name().to_str().unwrap().to_owned())
    }

    /// As the page on mount options has it.
    #[test]
    fn amazons_host_names_are_for_amazon() {
        const FAST: &str = "--transfer-acceleration";
        const BOTH: &str = "--dual-stack";
        let other = Some("https://s3.test");
        assert_eq!(host(&[FAST], "bucket", None).unwrap(), "bucket.s3-accelerate.amazonaws.com");
        assert_eq!(host(&[BOTH], "bucket", None).unwrap(), "bucket.s3.dualstack.eu-west-1.amazonaws.com");
        for (arguments, url, named) in [
            (&[FAST, "--force-path-style"][..], None, "`transfer-acceleration`"),
            (&[FAST], other, "`transfer-acceleration`"),
            (&[FAST, BOTH], other, "`dual-stack`"),
            (&[BOTH], other, "`dual-stack`"),
        ] {
            let refused = host(arguments, "bucket", url).unwrap_err();
            assert_eq!(refused.code, Code::BadOption, "{refused}");
            assert!(refused.message.contains(named) && refused.message.ends_with("remove the option"));
        }
    }

    #[test]
    fn a_bucket_without_an_address_is_the_buckets_mistake() {
        let refused = host(&[], "arn:nothing", None).unwrap_err();
        assert_eq!(refused.code, Code::BadBucket, "{refused}");
    }

    #[test]
    fn owners_are_accounts_where_the_server_is_amazon() {
        for (owner, url, is_right) in [
            ("111122223333", None, true),
            ("alice", None, false),
            ("11112222333x", Some("https://s3.eu-west-1.amazonaws.com"), false),
            ("alice", Some("https://s3.test"), true),
        ] {
            let argument = format!("--expected-bucket-owner={owner}");
            let code = host(&[&argument], "bucket", url).map_err(|refused| refused.code);
            assert_eq!(code.map(drop), if is_right { Ok(()) } else { Err(Code::BadOption) }, "{owner}");
        }
    }

    #[test]
    fn a_region_cannot_choose_a_host() {
        for region in ["us-east-1", "eu", "my_region-7"] {
            check_region(region).unwrap();
        }
        for region in ["", "a.evil.example/#", "eu west", "a\r\nx: y", "a/b", &"x".repeat(64)] {
            let refused = check_region(region).unwrap_err();
            assert_eq!(refused.code, Code::BadOption);
            assert!(!refused.message.contains('\n'), "{refused}");
        }
    }
}
