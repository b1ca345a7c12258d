//! The mount options by name.

use strum::{AsRefStr, Display, EnumString, IntoStaticStr, VariantArray};

use super::value::Value;

/// A mount option that volumes may use, or that the node sets.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    AsRefStr,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum MountOption {
    Prefix,
    Region,
    ForcePathStyle,
    TransferAcceleration,
    DualStack,
    RequesterPays,
    BucketType,
    ExpectedBucketOwner,
    NoSignRequest,
    Sse,
    SseKmsKeyId,
    UploadChecksums,
    InferContentType,
    ReadOnly,
    AllowDelete,
    AllowOverwrite,
    RenameByCopy,
    IgnoreAttributeChanges,
    AllowRoot,
    AllowOther,
    Uid,
    Gid,
    DirMode,
    FileMode,
    MetadataTtl,
    NegativeMetadataTtl,
    Cache,
    MaxCacheSize,
    MaximumThroughputGbps,
    MaxThreads,
    ServerTimeout,
    MemoryTarget,
    PartSize,
    ReadPartSize,
    WritePartSize,
    Bind,
    CaBundle,
    UserAgentPrefix,
    #[strum(to_string = "debug", serialize = "d")]
    Debug,
    DebugCrt,
    LogMetrics,
    NoLog,
    #[strum(to_string = "log-directory", serialize = "l")]
    LogDirectory,
    OtlpEndpoint,
    OtlpExportInterval,
    /// Becomes an environment variable of the mount process instead of an argument.
    AwsMaxAttempts,
}

impl MountOption {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Finds an option by its long or short name.
    pub fn find(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    pub fn value(self) -> Value {
        match self {
            Self::Prefix => Value::Prefix,
            Self::Region => Value::Region,
            Self::ForcePathStyle
            | Self::TransferAcceleration
            | Self::DualStack
            | Self::RequesterPays
            | Self::NoSignRequest
            | Self::InferContentType
            | Self::ReadOnly
            | Self::AllowDelete
            | Self::AllowOverwrite
            | Self::RenameByCopy
            | Self::IgnoreAttributeChanges
            | Self::AllowRoot
            | Self::AllowOther
            | Self::Debug
            | Self::DebugCrt
            | Self::LogMetrics
            | Self::NoLog => Value::Flag,
            Self::BucketType => Value::OneOf(&["general-purpose", "directory"]),
            Self::ExpectedBucketOwner | Self::OtlpEndpoint => Value::Text,
            Self::Sse => Value::OneOf(&["aws:kms", "aws:kms:dsse", "AES256"]),
            Self::SseKmsKeyId => Value::KmsKey,
            Self::UploadChecksums => Value::OneOf(&["crc32c", "crc64nvme", "off"]),
            Self::Uid | Self::Gid => Value::Number(1..=u64::from(u32::MAX)),
            Self::DirMode | Self::FileMode => Value::Mode,
            Self::MetadataTtl | Self::NegativeMetadataTtl => Value::Lifetime,
            Self::Cache | Self::UserAgentPrefix => Value::Overridden,
            Self::MaxCacheSize => Value::Number(0..=u64::MAX),
            Self::MaximumThroughputGbps
            | Self::MaxThreads
            | Self::ServerTimeout
            | Self::OtlpExportInterval
            | Self::AwsMaxAttempts => Value::Number(1..=u64::MAX),
            Self::MemoryTarget => Value::Number(512..=u64::MAX),
            // S3 takes no other parts for uploads.
            Self::PartSize | Self::ReadPartSize | Self::WritePartSize => Value::Number((5 << 20)..=(5 << 30)),
            Self::Bind => Value::Texts,
            Self::CaBundle => Value::Authority,
            Self::LogDirectory => Value::Path,
        }
    }
}

/// A mount option that volumes must not use. It is ignored, so that existing volumes keep working, and workloads get a
/// Warning event.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, AsRefStr, Display, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum IgnoredOption {
    /// Would read credentials that are not the volume's.
    Profile,
    /// Would send requests signed with the installation's keys to a server of the volume author's choice.
    EndpointUrl,
    /// Would store the volume's data in another bucket.
    CacheXz,
    /// Loses data on general-purpose buckets.
    IncrementalUpload,
    /// S3-compatible servers know only the standard one.
    StorageClass,
    /// Mount options of the kernel: only the node mounts.
    #[strum(to_string = "o")]
    Kernel,
}

impl IgnoredOption {
    pub const ALL: &[Self] = Self::VARIANTS;
}

/// Options for interactive use of `mount-s3`. They have no meaning in a Mountpoint Pod and are ignored without an event,
/// as they always were.
pub const TERMINAL_OPTIONS: &[&str] = &["foreground", "f", "help", "h", "version", "v"];
