//! The options of `mount-s3`, by its names, with its defaults and its rules, so that the mount options in people's
//! volumes keep their meaning.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use contract::options::check_value;
use mounter::reply::{Code, Refused};
use mountpoint_s3_fs::fs::TimeToLive;
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path, S3Personality};

/// What S3 and its client take as the size of one part.
const PART_SIZE: u64 = 8 * 1024 * 1024;
/// With a cache of contents, what is known about them is kept as long.
const TTL_WITH_CACHE: Duration = Duration::from_mins(1);

/// Serves one bucket on a FUSE descriptor.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of a command line")]
#[expect(clippy::doc_markdown, reason = "these lines are what --help prints")]
#[command(name = "s3-csi-mountpoint", version, max_term_width = 110)]
pub(crate) struct Options {
    /// Name of the bucket, or s3://BUCKET/PREFIX/
    #[arg(value_parser = parse_bucket)]
    bucket: S3Path,
    /// The FUSE descriptor, as /dev/fd/N
    pub(crate) mount_point: PathBuf,

    /// Prefix inside the bucket, ending in '/' [default: the whole bucket]
    #[arg(long, help_heading = "Bucket")]
    prefix: Option<String>,
    /// Region of the bucket [env: AWS_REGION] [default: us-east-1, or where the server redirects to]
    #[arg(long, value_parser = checked::<String>("region"), help_heading = "Bucket")]
    pub(crate) region: Option<String>,
    /// URL of the S3 endpoint [env: AWS_ENDPOINT_URL] [default: Amazon's for the region]
    #[arg(long, help_heading = "Bucket")]
    pub(crate) endpoint_url: Option<String>,
    /// Put the bucket's name into the path instead of the host name
    #[arg(long, help_heading = "Bucket")]
    pub(crate) force_path_style: bool,
    /// Use S3 Transfer Acceleration
    #[arg(long, help_heading = "Bucket")]
    pub(crate) transfer_acceleration: bool,
    /// Use dual-stack endpoints
    #[arg(long, help_heading = "Bucket")]
    pub(crate) dual_stack: bool,
    /// Tell S3 that the requester pays
    #[arg(long, help_heading = "Bucket")]
    pub(crate) requester_pays: bool,
    /// Type of the bucket [default: told by its name]
    #[arg(long, value_enum, help_heading = "Bucket")]
    bucket_type: Option<BucketType>,
    /// Account that must own the bucket
    #[arg(long, value_name = "AWS_ACCOUNT_ID", help_heading = "Bucket")]
    pub(crate) expected_bucket_owner: Option<String>,
    /// Storage class of new objects
    #[arg(long, help_heading = "Bucket")]
    pub(crate) storage_class: Option<String>,
    /// Server-side encryption of new objects
    #[arg(long, value_parser = ["aws:kms", "aws:kms:dsse", "AES256"], help_heading = "Bucket")]
    pub(crate) sse: Option<String>,
    /// Key for encryption by KMS, as the ARN of a key
    #[arg(long, value_name = "AWS_KMS_KEY_ARN", requires = "sse", value_parser = checked::<String>("sse-kms-key-id"), help_heading = "Bucket")]
    pub(crate) sse_kms_key_id: Option<String>,
    /// Checksums of uploads [default: crc32c]
    #[arg(long, value_name = "ALGORITHM", value_enum, help_heading = "Bucket")]
    pub(crate) upload_checksums: Option<UploadChecksums>,
    /// Tell the content type of new objects from their names
    #[arg(long, help_heading = "Bucket")]
    pub(crate) infer_content_type: bool,

    /// Do not sign requests
    #[arg(long, help_heading = "Credentials")]
    pub(crate) no_sign_request: bool,
    /// Profile in the credentials file [env: AWS_PROFILE]
    #[arg(long, help_heading = "Credentials")]
    pub(crate) profile: Option<String>,

    /// Refuse every change
    #[arg(long, help_heading = "Mount")]
    pub(crate) read_only: bool,
    /// Allow files to be deleted
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_delete: bool,
    /// Allow files to be overwritten
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_overwrite: bool,
    /// Allow appending to objects; only in directory buckets
    #[arg(long, help_heading = "Mount")]
    pub(crate) incremental_upload: bool,
    /// Let root in besides the owner
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_root: bool,
    /// Let every user in, as far as the modes allow
    #[arg(long, conflicts_with = "allow_root", help_heading = "Mount")]
    pub(crate) allow_other: bool,
    /// Owner of every file [default: the user of this process]
    #[arg(long, value_parser = checked::<u32>("uid"), help_heading = "Mount")]
    pub(crate) uid: Option<u32>,
    /// Group of every file [default: the group of this process]
    #[arg(long, value_parser = checked::<u32>("gid"), help_heading = "Mount")]
    pub(crate) gid: Option<u32>,
    /// Permissions of folders, octal [default: 0755]
    #[arg(long, value_parser = parse_mode, help_heading = "Mount")]
    pub(crate) dir_mode: Option<u16>,
    /// Permissions of files, octal [default: 0644]
    #[arg(long, value_parser = parse_mode, help_heading = "Mount")]
    pub(crate) file_mode: Option<u16>,

    /// Throughput to aim at, in Gbps [default: 10]
    #[arg(long, value_name = "N", value_parser = checked::<u64>("maximum-throughput-gbps"), help_heading = "Client")]
    pub(crate) maximum_throughput_gbps: Option<u64>,
    /// Most threads that answer the kernel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = checked::<u64>("max-threads"), help_heading = "Client")]
    pub(crate) max_threads: u64,
    /// Longest that a request waits while the server sends nothing; then the program gets EIO
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = checked::<u64>("server-timeout"), help_heading = "Client")]
    server_timeout: u64,
    /// Memory to stay within, in MiB, as far as the container's limit allows [default: what the limit allows, else 512]
    #[arg(long, value_name = "MiB", value_parser = checked::<u64>("memory-target"), help_heading = "Client")]
    pub(crate) memory_target: Option<u64>,
    /// Size of the parts of downloads and uploads, in bytes
    #[arg(long, value_name = "SIZE", default_value_t = PART_SIZE, value_parser = checked::<u64>("part-size"), help_heading = "Client")]
    part_size: u64,
    /// The same for downloads alone
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = checked::<u64>("read-part-size"), help_heading = "Client")]
    read_part_size: Option<u64>,
    /// The same for uploads alone
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = checked::<u64>("write-part-size"), help_heading = "Client")]
    write_part_size: Option<u64>,
    /// Network interface to use; may be repeated
    #[arg(long, value_name = "NETWORK_INTERFACE", help_heading = "Client")]
    pub(crate) bind: Option<Vec<String>>,
    /// Certificates to trust instead of the system's, a PEM file [env: AWS_CA_BUNDLE]
    #[arg(long, value_name = "FILE", value_parser = checked::<PathBuf>("ca-bundle"), help_heading = "Client")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Put before our own name in the User-Agent header
    #[arg(long, value_name = "PREFIX", help_heading = "Client")]
    pub(crate) user_agent_prefix: Option<String>,

    /// Folder to cache contents in; raises the metadata TTL to 60 s
    #[arg(long, value_name = "DIRECTORY", help_heading = "Caching")]
    pub(crate) cache: Option<PathBuf>,
    /// Most that the cache may take, in MiB; 0 turns it off [default: leave 5% of the disk free]
    #[arg(long, value_name = "MiB", requires = "cache", help_heading = "Caching")]
    pub(crate) max_cache_size: Option<u64>,
    /// Directory bucket to cache contents in
    #[arg(long, value_name = "BUCKET", value_parser = parse_cache_bucket, help_heading = "Caching")]
    pub(crate) cache_xz: Option<Bucket>,
    /// How long what is known about files is believed [default: minimal]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = checked::<TimeToLive>("metadata-ttl"), help_heading = "Caching")]
    metadata_ttl: Option<TimeToLive>,
    /// How long it is believed that a file does not exist [default: the metadata TTL]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = checked::<TimeToLive>("negative-metadata-ttl"), help_heading = "Caching")]
    pub(crate) negative_metadata_ttl: Option<TimeToLive>,

    /// Log more
    #[arg(short, long, help_heading = "Logging")]
    pub(crate) debug: bool,
    /// Log what the S3 client's core does
    #[arg(long, help_heading = "Logging")]
    pub(crate) debug_crt: bool,
    /// Log nothing
    #[arg(long, conflicts_with_all = ["log_directory", "debug", "debug_crt", "log_metrics"], help_heading = "Logging")]
    pub(crate) no_log: bool,
    /// Log figures of performance
    #[arg(long, help_heading = "Logging")]
    pub(crate) log_metrics: bool,
    /// Log into files of this folder too
    #[arg(short, long, value_name = "DIRECTORY", help_heading = "Logging")]
    pub(crate) log_directory: Option<PathBuf>,
    /// Send metrics to this OTLP endpoint
    #[arg(long, value_name = "ENDPOINT", help_heading = "Logging")]
    pub(crate) otlp_endpoint: Option<String>,
    /// How often, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "otlp_endpoint", value_parser = checked::<u64>("otlp-export-interval"), help_heading = "Logging")]
    pub(crate) otlp_export_interval: Option<u64>,

    /// Accepted and meaningless: this program never leaves the foreground
    #[arg(short, long, hide = true)]
    foreground: bool,
    #[arg(long, hide = true)]
    auto_unmount: bool,
    #[arg(short = 'o', hide = true)]
    fstab: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BucketType {
    GeneralPurpose,
    Directory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UploadChecksums {
    Crc32c,
    Crc64nvme,
    Off,
}

/// What came of a command line.
#[derive(Debug)]
pub(crate) enum Wanted {
    Serve(Box<Options>),
    /// `--help` or `--version`.
    Text(String),
}

impl Options {
    pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Wanted, Refused> {
        let options = match Self::try_parse_from(arguments) {
            Ok(options) => options,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                return Ok(Wanted::Text(error.to_string()));
            }
            Err(error) => return Err(refused(&error)),
        };
        options.check()?;
        Ok(Wanted::Serve(Box::new(options)))
    }

    /// What one option alone cannot tell.
    fn check(&self) -> Result<(), Refused> {
        let bad = |message: &str| Err(Refused::new(Code::BadOption, message));
        if self.auto_unmount {
            return bad("auto-unmount is not for volumes: the node mounts and unmounts; remove it");
        }
        if self.fstab.is_some() {
            return bad("-o is not for volumes: write each option as a mount option of its own");
        }
        if self.sse_kms_key_id.is_some() && self.sse.as_deref() == Some("AES256") {
            return bad("sse-kms-key-id cannot be used with sse=AES256: use sse=aws:kms, or remove the key");
        }
        if self.prefix.is_some() && !self.bucket.prefix.as_str().is_empty() {
            return bad("prefix is given twice, in the s3:// address and as an option: remove one");
        }
        self.path().map(drop)
    }

    /// Bucket and prefix.
    pub(crate) fn path(&self) -> Result<S3Path, Refused> {
        let Some(prefix) = &self.prefix else { return Ok(self.bucket.clone()) };
        let prefix = Prefix::new(prefix).map_err(|_| {
            let message = format!("prefix is `{prefix}` and must end in '/': write `{prefix}/`");
            Refused::new(Code::BadPrefix, message)
        })?;
        Ok(S3Path::new(self.bucket.bucket.clone(), prefix))
    }

    pub(crate) fn personality(&self) -> Option<S3Personality> {
        self.bucket_type.map(|bucket_type| match bucket_type {
            BucketType::GeneralPurpose => S3Personality::Standard,
            BucketType::Directory => S3Personality::ExpressOneZone,
        })
    }

    /// Sizes of parts for downloads and uploads.
    pub(crate) fn part_sizes(&self) -> (u64, u64) {
        (self.read_part_size.unwrap_or(self.part_size), self.write_part_size.unwrap_or(self.part_size))
    }

    pub(crate) fn server_timeout(&self) -> Duration {
        Duration::from_secs(self.server_timeout)
    }

    pub(crate) fn metadata_ttl(&self) -> TimeToLive {
        match self.metadata_ttl {
            // As `mount-s3` reads it: without any TTL, every entry of a listing would be looked up again at once.
            Some(TimeToLive::Duration(Duration::ZERO)) => TimeToLive::Minimal,
            Some(ttl) => ttl,
            None if self.cache.is_some() || self.cache_xz.is_some() => TimeToLive::Duration(TTL_WITH_CACHE),
            None => TimeToLive::Minimal,
        }
    }
}

/// Clap's message without its frills: the first paragraph names option, value and what would be right.
fn refused(error: &clap::Error) -> Refused {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let told = text.split("\n\nUsage:").next().unwrap_or(text);
    let told: Vec<&str> = told
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    Refused::new(Code::BadOption, told.join("; "))
}

fn parse_bucket(text: &str) -> Result<S3Path, String> {
    let parsed = if text.starts_with("s3://") {
        S3Path::parse_s3_uri(text)
    } else {
        Bucket::new(text).map(|bucket| S3Path::new(bucket, Prefix::empty()))
    };
    parsed.map_err(|error| error.to_string())
}

fn parse_cache_bucket(text: &str) -> Result<Bucket, String> {
    let path = parse_bucket(text)?;
    if path.prefix.as_str().is_empty() {
        Ok(path.bucket)
    } else {
        Err("it must not have a prefix".to_owned())
    }
}

/// By the table that controller and node refuse by, before this process is started.
fn checked<T>(option: &'static str) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        check_value(option, &text)?;
        text.parse::<T>().map_err(|error| error.to_string())
    })
}

fn parse_mode(text: &str) -> Result<u16, String> {
    check_value("dir-mode", text)?;
    u16::from_str_radix(text, 8).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
