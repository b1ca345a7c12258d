//! Everything that needs no FUSE descriptor, from options to a file system that could be served. What can be wrong with a
//! mount is found here, before the kernel gets its first answer.

use std::sync::Arc;
use std::time::Duration;

use mounter::handover::{Code, Refused};
use mountpoint_s3_fs::content_type::ContentTypeDetection;
use mountpoint_s3_fs::data_cache::ManagedCacheDir;
use mountpoint_s3_fs::fs::{CacheConfig, UploadChecksumAlgorithm};
use mountpoint_s3_fs::fuse::S3FuseFilesystem;
use mountpoint_s3_fs::memory::{CandidateSize, PagedPool};
use mountpoint_s3_fs::s3::config::PartConfig;
use mountpoint_s3_fs::s3::{S3Path, S3Personality};
use mountpoint_s3_fs::{Runtime, S3Filesystem, S3FilesystemConfig, Superblock, SuperblockConfig};

use crate::cache::{self, BLOCK};
use crate::client::Client;
use crate::connect::{Connected, Variable, connect};
use crate::fuse::{Finish, FuseFilesystem, OpenFiles, SpoolBudget, Storage, Workers};
use crate::inodes::Inodes;
use crate::memory;
use crate::options::{Options, UploadChecksums};
use crate::server_timeout::ServerTimeout;

/// How often unused buffers are returned to the system.
const RETURN_BUFFERS_EVERY: Duration = Duration::from_mins(1);

pub(crate) struct Prepared {
    pub(crate) front: Front,
    pub(crate) finish: Finish,
    /// Removed when the session has ended.
    pub(crate) cache_folder: Option<ManagedCacheDir>,
    pub(crate) threads: usize,
}

/// What answers the kernel.
pub(crate) enum Front {
    Own(FuseFilesystem),
    Library(Box<S3FuseFilesystem<Client>>),
}

pub(crate) fn prepare(options: &Options, variable: Variable<'_>) -> Result<Prepared, Refused> {
    let path = options.path()?;
    let cache_folder = cache::folder(options)?;
    let container = memory::container_limit();
    let memory = memory::limit(options.memory_target, container);
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
        .with_maintenance_interval(RETURN_BUFFERS_EVERY)
        .build();
    let part_sizes = (parts.read_size_bytes, parts.write_size_bytes);
    let timeout = ServerTimeout::new(options.server_timeout()).map_err(cannot_serve)?;
    let Connected { client, first, personality } =
        connect(options, &path, part_sizes, pool.clone(), &timeout, variable)?;
    refuse_append(options, &path, personality)?;

    let config = filesystem_config(options, personality);
    let superblock =
        SuperblockConfig { cache_config: config.cache_config.clone(), s3_personality: config.s3_personality };
    let runtime = Runtime::new(first.event_loop_group());
    let caches = cache::Caches::new(options, &path, cache_folder.as_ref());
    let prefetcher = caches.prefetcher(&client, &runtime, pool.clone()).map_err(cannot_serve)?;
    let superblock = Superblock::new(client.clone(), path, superblock);
    let threads = size(options.max_threads);
    let (workers, finish) = Workers::new(threads).map_err(cannot_serve)?;
    if options.library_front {
        let files = S3Filesystem::new(client, prefetcher, pool, runtime, superblock, config);
        let front = Front::Library(Box::new(S3FuseFilesystem::new(files, None)));
        return Ok(Prepared { front, finish, cache_folder, threads });
    }
    let inodes = Inodes::new(superblock, client.uploads());
    let files = S3Filesystem::new(client.clone(), prefetcher, pool, runtime, inodes, config);
    let spools = SpoolBudget::new(memory::for_spools(container));
    let storage = Storage::new(files, client, spools, timeout);
    let front = Front::Own(FuseFilesystem {
        open_files: Arc::new(OpenFiles::new(storage, options.incremental_upload)),
        workers,
        ignores_attributes: options.ignore_attribute_changes,
    });
    Ok(Prepared { front, finish, cache_folder, threads })
}

pub(crate) fn bad_option(error: impl std::fmt::Display) -> Refused {
    Refused::new(Code::BadOption, error.to_string())
}

pub(crate) fn cannot_serve(error: impl std::fmt::Display) -> Refused {
    Refused::new(Code::Failed, format!("cannot serve: {error:#}"))
}

/// General-purpose buckets cannot append: their servers would keep only the appended bytes.
fn refuse_append(options: &Options, path: &S3Path, personality: S3Personality) -> Result<(), Refused> {
    // The library has no other way to recognize directory buckets.
    if options.incremental_upload && !personality.supports_rename_object() {
        let message = format!(
            "`incremental-upload` loses data in bucket `{}`, which is not a directory bucket: remove the option",
            path.bucket
        );
        return Err(Refused::new(Code::BadOption, message));
    }
    Ok(())
}

fn filesystem_config(options: &Options, personality: S3Personality) -> S3FilesystemConfig {
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
        server_side_encryption: options.encryption(),
        upload_checksum_algorithm,
        content_type_detection: detection,
        read_only: options.read_only,
        ..defaults
    }
}
