//! From a command line to a served bucket.

use std::time::Duration;

use fuser::{Session, SessionACL};
use mounter::reply::{Code, Refused};
use mountpoint_s3_client::config::AWSCRT_LOG_TARGET;
use mountpoint_s3_fs::content_type::ContentTypeDetection;
use mountpoint_s3_fs::fs::{CacheConfig, UploadChecksumAlgorithm};
use mountpoint_s3_fs::fuse::config::MountPoint;
use mountpoint_s3_fs::fuse::session::FuseSession;
use mountpoint_s3_fs::logging::{LoggingConfig, prepare_log_file_name};
use mountpoint_s3_fs::memory::{CandidateSize, PagedPool};
use mountpoint_s3_fs::metrics::{self, MetricsConfig};
use mountpoint_s3_fs::metrics_otel::OtlpConfig;
use mountpoint_s3_fs::s3::config::PartConfig;
use mountpoint_s3_fs::s3::{S3Path, S3Personality};
use mountpoint_s3_fs::{
    Runtime, S3Filesystem, S3FilesystemConfig, ServerSideEncryption, Superblock, SuperblockConfig,
};

use crate::cache::{self, BLOCK};
use crate::connect::{Connected, Variable, connect};
use crate::front::Front;
use crate::memory;
use crate::options::{Options, UploadChecksums};
use crate::silence::Silence;
use crate::workers::Workers;

/// Buffers that nobody needs go back to the system about this often.
const TIDY_EVERY: Duration = Duration::from_mins(1);

pub(crate) fn logging(options: &Options) -> LoggingConfig {
    let metrics = if options.log_metrics || options.debug { "" } else { ",mountpoint_s3_fs::metrics=off" };
    let own = if options.debug { "debug" } else { "warn,mountpoint_s3=info,s3_csi_mountpoint=info" };
    let core = if options.debug_crt { "debug" } else { "off" };
    // What is signed has session tokens in it, and so has the signature's log.
    let core = format!("{AWSCRT_LOG_TARGET}={core},{AWSCRT_LOG_TARGET}::AuthSigning=off");
    let default_filter = if options.no_log { "off".to_owned() } else { format!("{own},{core}{metrics}") };
    LoggingConfig {
        log_file: options.log_directory.as_deref().map(prepare_log_file_name),
        log_to_stdout: true,
        default_filter,
    }
}

pub(crate) fn metrics_config(options: &Options) -> Option<MetricsConfig> {
    let mut config = OtlpConfig::new(options.otlp_endpoint.as_ref()?);
    if let Some(seconds) = options.otlp_export_interval {
        config.interval_secs = seconds;
    }
    Some(MetricsConfig::Otlp(config))
}

/// Everything that can be wrong is found before the descriptor is answered on.
pub(crate) fn serve(options: &Options, variable: Variable<'_>) -> Result<FuseSession, Refused> {
    let path = options.path()?;
    let cache_folder = cache::folder(options)?;
    let memory = memory::limit(options.memory_target, memory::container_limit());
    let (read_part, write_part) = options.part_sizes();
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let parts = PartConfig::with_read_write_sizes(size(read_part), size(write_part)).validate(memory);
    let parts = parts.map_err(bad_option)?;
    let pool = PagedPool::config()
        .with_candidate_sizes([
            CandidateSize::prunable(BLOCK),
            CandidateSize::prunable(parts.read_size_bytes),
            CandidateSize::new(parts.write_size_bytes),
        ])
        .with_memory_limit(memory.bytes())
        .with_maintenance_interval(TIDY_EVERY)
        .build();
    let part_sizes = (parts.read_size_bytes, parts.write_size_bytes);
    let silence = Silence::new(options.server_timeout()).map_err(cannot_serve)?;
    let Connected { client, first, personality } =
        connect(options, &path, part_sizes, pool.clone(), &silence, variable)?;
    refuse_append(options, &path, personality)?;

    let filesystem = filesystem(options, personality);
    let MountPoint::FileDescriptor(device) = MountPoint::new(&options.mount_point).map_err(bad_option)?
    else {
        return Err(bad_option(format!("{} is not a descriptor", options.mount_point.display())));
    };
    let superblock = SuperblockConfig {
        cache_config: filesystem.cache_config.clone(),
        s3_personality: filesystem.s3_personality,
    };
    let runtime = Runtime::new(first.event_loop_group());
    let caches = cache::Caches::new(options, &path, cache_folder.as_ref());
    let prefetcher = caches.prefetcher(&client, &runtime, pool.clone()).map_err(cannot_serve)?;
    let superblock = Superblock::new(client.clone(), path, superblock);
    let files = S3Filesystem::new(client, prefetcher, pool, runtime, superblock, filesystem);
    let threads = size(options.max_threads);
    let (workers, finish) = Workers::new(threads).map_err(cannot_serve)?;
    let session = Session::from_fd(Front::new(files, workers, silence), device, users(options));
    let mut session = FuseSession::from_session(session, threads, false).map_err(cannot_serve)?;
    session.run_on_close(Box::new(|| finish.wait()));
    if let Some(folder) = cache_folder {
        session.run_on_close(Box::new(move || drop(folder)));
    }
    Ok(session)
}

/// Whose requests are answered; what the modes allow them is the kernel's to check.
fn users(options: &Options) -> SessionACL {
    match options {
        Options { allow_root: true, .. } => SessionACL::RootAndOwner,
        Options { allow_other: true, .. } => SessionACL::All,
        _ => SessionACL::Owner,
    }
}

fn bad_option(error: impl std::fmt::Display) -> Refused {
    Refused::new(Code::BadOption, error.to_string())
}

fn cannot_serve(error: impl std::fmt::Display) -> Refused {
    Refused::new(Code::Failed, format!("cannot serve: {error:#}"))
}

/// Servers of general-purpose buckets know no append: they would keep the appended bytes alone and lose the rest.
fn refuse_append(options: &Options, path: &S3Path, personality: S3Personality) -> Result<(), Refused> {
    // The library's only question that directory buckets, and no others, answer with yes.
    if options.incremental_upload && !personality.supports_rename_object() {
        let message = format!(
            "incremental-upload loses data in bucket `{}`, which is not a directory bucket: remove the option",
            path.bucket
        );
        return Err(Refused::new(Code::BadOption, message));
    }
    Ok(())
}

fn filesystem(options: &Options, personality: S3Personality) -> S3FilesystemConfig {
    let defaults = S3FilesystemConfig::default();
    let mut cache_config = CacheConfig::new(options.metadata_ttl());
    if let Some(ttl) = options.negative_metadata_ttl {
        cache_config = cache_config.with_negative_metadata_ttl(ttl);
    }
    let upload_checksum_algorithm = match options.upload_checksums {
        Some(UploadChecksums::Crc32c) => Some(UploadChecksumAlgorithm::Crc32c),
        Some(UploadChecksums::Crc64nvme) => Some(UploadChecksumAlgorithm::Crc64nvme),
        Some(UploadChecksums::Off) => None,
        None => personality.supports_additional_checksums().then_some(UploadChecksumAlgorithm::Crc32c),
    };
    let detection =
        if options.infer_content_type { ContentTypeDetection::Auto } else { ContentTypeDetection::Disabled };
    S3FilesystemConfig {
        cache_config,
        uid: options.uid.unwrap_or(defaults.uid),
        gid: options.gid.unwrap_or(defaults.gid),
        dir_mode: options.dir_mode.unwrap_or(defaults.dir_mode),
        file_mode: options.file_mode.unwrap_or(defaults.file_mode),
        allow_delete: options.allow_delete,
        allow_overwrite: options.allow_overwrite,
        incremental_upload: options.incremental_upload,
        storage_class: options.storage_class.clone(),
        s3_personality: personality,
        server_side_encryption: encryption(options),
        upload_checksum_algorithm,
        content_type_detection: detection,
        read_only: options.read_only,
        ..defaults
    }
}

pub(crate) fn encryption(options: &Options) -> ServerSideEncryption {
    ServerSideEncryption::new(options.sse.clone(), options.sse_kms_key_id.clone())
}

/// The handle of [`metrics::install`], which counts as long as it lives.
pub(crate) fn install_metrics(options: &Options) -> Result<metrics::MetricsSinkHandle, Refused> {
    metrics::install(metrics_config(options)).map_err(bad_option)
}
