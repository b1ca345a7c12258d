//! The options of `mount-s3`, with its names, defaults and rules, so that the mount options of existing volumes keep their
//! meaning.

mod lifetimes;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use contract::options::MountOption;
use mounter::handover::{Code, Refused};
use mountpoint_s3_fs::ServerSideEncryption;
use mountpoint_s3_fs::fs::TimeToLive;
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path, S3Personality};

use values::{checked, parse_bucket, parse_cache_bucket, parse_mode, refused};

/// Bytes of one part of a download or upload: the default of `mount-s3`.
const PART_SIZE: u64 = 8 * 1024 * 1024;

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
    #[arg(long, value_parser = checked::<String>(MountOption::Region), help_heading = "Bucket")]
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
    /// Type of the bucket [default: derived from its name]
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
    #[arg(long, value_name = "AWS_KMS_KEY_ARN", requires = "sse", value_parser = checked::<String>(MountOption::SseKmsKeyId), help_heading = "Bucket")]
    pub(crate) sse_kms_key_id: Option<String>,
    /// Checksums of uploads [default: crc32c]
    #[arg(long, value_name = "ALGORITHM", value_enum, help_heading = "Bucket")]
    pub(crate) upload_checksums: Option<UploadChecksums>,
    /// Derive the content type of new objects from their names
    #[arg(long, help_heading = "Bucket")]
    pub(crate) infer_content_type: bool,

    /// Do not sign requests
    #[arg(long, help_heading = "Credentials")]
    pub(crate) no_sign_request: bool,
    /// Profile in the credentials file [env: AWS_PROFILE]
    #[arg(long, help_heading = "Credentials")]
    pub(crate) profile: Option<String>,

    /// Reject every change
    #[arg(long, help_heading = "Mount")]
    pub(crate) read_only: bool,
    /// Allow files to be deleted
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_delete: bool,
    /// Allow files to be overwritten
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_overwrite: bool,
    /// Rename files by copying their objects and deleting the old ones
    #[arg(long, requires = "allow_delete", conflicts_with = "sse", help_heading = "Mount")]
    pub(crate) rename_by_copy: bool,
    /// Accept changes of mode, owner and times without effect, instead of refusing them
    #[arg(long, help_heading = "Mount")]
    pub(crate) ignore_attribute_changes: bool,
    /// Allow appending to objects; only in directory buckets
    #[arg(long, help_heading = "Mount")]
    pub(crate) incremental_upload: bool,
    /// Allow root besides the owner
    #[arg(long, help_heading = "Mount")]
    pub(crate) allow_root: bool,
    /// Allow all users, as far as the modes permit
    #[arg(long, conflicts_with = "allow_root", help_heading = "Mount")]
    pub(crate) allow_other: bool,
    /// Owner of every file [default: the user of this process]
    #[arg(long, value_parser = checked::<u32>(MountOption::Uid), help_heading = "Mount")]
    pub(crate) uid: Option<u32>,
    /// Group of every file [default: the group of this process]
    #[arg(long, value_parser = checked::<u32>(MountOption::Gid), help_heading = "Mount")]
    pub(crate) gid: Option<u32>,
    /// Permissions of folders, octal [default: 0755]
    #[arg(long, value_parser = parse_mode, help_heading = "Mount")]
    pub(crate) dir_mode: Option<u16>,
    /// Permissions of files, octal [default: 0644]
    #[arg(long, value_parser = parse_mode, help_heading = "Mount")]
    pub(crate) file_mode: Option<u16>,

    /// Target throughput, in Gbps [default: 10]
    #[arg(long, value_name = "N", value_parser = checked::<u64>(MountOption::MaximumThroughputGbps), help_heading = "Client")]
    pub(crate) maximum_throughput_gbps: Option<u64>,
    /// Maximum number of threads that answer the kernel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = checked::<u64>(MountOption::MaxThreads), help_heading = "Client")]
    pub(crate) max_threads: u64,
    /// How long a request waits while the server sends nothing, before it fails with EIO
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = checked::<u64>(MountOption::ServerTimeout), help_heading = "Client")]
    server_timeout: u64,
    /// Memory target, in MiB; no more than the container's limit allows [default: what the limit allows, else 512]
    #[arg(long, value_name = "MiB", value_parser = checked::<u64>(MountOption::MemoryTarget), help_heading = "Client")]
    pub(crate) memory_target: Option<u64>,
    /// Size of the parts of downloads and uploads, in bytes
    #[arg(long, value_name = "SIZE", default_value_t = PART_SIZE, value_parser = checked::<u64>(MountOption::PartSize), help_heading = "Client")]
    part_size: u64,
    /// The same for downloads alone
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = checked::<u64>(MountOption::ReadPartSize), help_heading = "Client")]
    read_part_size: Option<u64>,
    /// The same for uploads alone
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = checked::<u64>(MountOption::WritePartSize), help_heading = "Client")]
    write_part_size: Option<u64>,
    /// Network interface to use; may be repeated
    #[arg(long, value_name = "NETWORK_INTERFACE", help_heading = "Client")]
    pub(crate) bind: Option<Vec<String>>,
    /// Certificates to trust instead of the system's, a PEM file [env: AWS_CA_BUNDLE]
    #[arg(long, value_name = "FILE", value_parser = checked::<PathBuf>(MountOption::CaBundle), help_heading = "Client")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Prefix of the User-Agent header
    #[arg(long, value_name = "PREFIX", help_heading = "Client")]
    pub(crate) user_agent_prefix: Option<String>,

    /// Directory to cache contents in; raises the metadata TTL to 60 s
    #[arg(long, value_name = "DIRECTORY", help_heading = "Caching")]
    pub(crate) cache: Option<PathBuf>,
    /// Maximum size of the cache, in MiB; 0 turns it off [default: leave 5% of the disk free]
    #[arg(long, value_name = "MiB", requires = "cache", help_heading = "Caching")]
    pub(crate) max_cache_size: Option<u64>,
    /// Directory bucket to cache contents in
    #[arg(long, value_name = "BUCKET", value_parser = parse_cache_bucket, help_heading = "Caching")]
    pub(crate) cache_xz: Option<Bucket>,
    /// How long metadata is cached [default: less than a second, and confirmed when a file is opened; 60 with a cache]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = checked::<TimeToLive>(MountOption::MetadataTtl), help_heading = "Caching")]
    metadata_ttl: Option<TimeToLive>,
    /// How long it is cached that a file does not exist [default: the metadata TTL if given, or 2 ms]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = checked::<TimeToLive>(MountOption::NegativeMetadataTtl), help_heading = "Caching")]
    pub(crate) negative_metadata_ttl: Option<TimeToLive>,

    /// Log debug messages
    #[arg(short, long, help_heading = "Logging")]
    pub(crate) debug: bool,
    /// Log debug messages of the S3 client
    #[arg(long, help_heading = "Logging")]
    pub(crate) debug_crt: bool,
    /// Log nothing
    #[arg(long, conflicts_with_all = ["log_directory", "debug", "debug_crt", "log_metrics"], help_heading = "Logging")]
    pub(crate) no_log: bool,
    /// Log metrics
    #[arg(long, help_heading = "Logging")]
    pub(crate) log_metrics: bool,
    /// Also log into files in this directory
    #[arg(short, long, value_name = "DIRECTORY", help_heading = "Logging")]
    pub(crate) log_directory: Option<PathBuf>,
    /// Send metrics to this OTLP endpoint
    #[arg(long, value_name = "ENDPOINT", help_heading = "Logging")]
    pub(crate) otlp_endpoint: Option<String>,
    /// How often, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "otlp_endpoint", value_parser = checked::<u64>(MountOption::OtlpExportInterval), help_heading = "Logging")]
    pub(crate) otlp_export_interval: Option<u64>,

    /// Serve with the library's own FUSE front: what `cargo xtask bench data` compares ours with
    #[arg(long, hide = true)]
    pub(crate) library_front: bool,
    /// Keep what another mount process needs to continue in this folder, or continue with what is there
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    pub(crate) survival_folder: Option<PathBuf>,
    /// Accepted without effect: this program always runs in the foreground
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

#[derive(Debug)]
pub(crate) enum Invocation {
    Serve(Box<Options>),
    /// `--help` or `--version`.
    Print(String),
}

impl Options {
    pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, Refused> {
        let options = match Self::try_parse_from(arguments) {
            Ok(options) => options,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                return Ok(Invocation::Print(error.to_string()));
            }
            Err(error) => return Err(refused(&error)),
        };
        options.check()?;
        Ok(Invocation::Serve(Box::new(options)))
    }

    /// Rules about more than one option, and options that volumes cannot have.
    fn check(&self) -> Result<(), Refused> {
        let bad = |message: &str| Err(Refused::new(Code::BadOption, message));
        if self.auto_unmount {
            return bad(
                "`auto-unmount` is not available for volumes: the node service mounts and unmounts; remove it",
            );
        }
        if self.fstab.is_some() {
            return bad("`-o` is not available for volumes: write each option as a mount option of its own");
        }
        if self.sse_kms_key_id.is_some() && self.sse.as_deref() == Some("AES256") {
            return bad(
                "`sse-kms-key-id` cannot be used with sse=AES256: use sse=aws:kms, or remove the key",
            );
        }
        if self.prefix.is_some() && !self.bucket.prefix.as_str().is_empty() {
            return bad("`prefix` is given twice, in the s3:// address and as an option: remove one");
        }
        self.path().map(drop)
    }

    /// Bucket and prefix.
    pub(crate) fn path(&self) -> Result<S3Path, Refused> {
        let Some(prefix) = &self.prefix else { return Ok(self.bucket.clone()) };
        let prefix = Prefix::new(prefix).map_err(|_| {
            let message = format!("invalid `prefix` `{prefix}`: it must end in '/': write `{prefix}/`");
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

    pub(crate) fn encryption(&self) -> ServerSideEncryption {
        ServerSideEncryption::new(self.sse.clone(), self.sse_kms_key_id.clone())
    }
}

#[cfg(test)]
mod tests;
