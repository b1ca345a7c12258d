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

use crate::abort::abort_all;
use crate::cache;
use crate::client::Client;
use crate::connect::{Connected, Variable, connect};
use crate::first_read::FIRST_BYTES;
use crate::fuse::{Finish, FuseFilesystem, OpenFiles, Repetitions, Spools, Storage, Workers};
use crate::inodes::Inodes;
use crate::journal::{Begin, Journal, Known};
use crate::memory::{self, SMALL_BUFFER};
use crate::multipart::Unfinished;
use crate::numbers::Numbers;
use crate::options::{Options, UploadChecksums};
use crate::outdated::KNOWN_FOR;
use crate::server_timeout::ServerTimeout;
use crate::telemetry::Telemetry;

/// How often unused buffers are returned to the system.
const RETURN_BUFFERS_EVERY: Duration = Duration::from_mins(1);

/// How long a name is known not to exist. The kernel asks twice within a millisecond when it creates a file. A longer time
/// would hide files that others create.
const KNOWN_TO_BE_MISSING_FOR: Duration = Duration::from_millis(2);

pub(crate) struct Prepared {
    pub(crate) front: Front,
    /// Set if the mount must survive this process.
    pub(crate) survival: Option<Survival>,
    pub(crate) finish: Finish,
    /// Removed when the session has ended.
    pub(crate) cache_folder: Option<ManagedCacheDir>,
    pub(crate) threads: usize,
}

/// What is needed to begin a mount that survives, or to go on with one.
pub(crate) struct Survival {
    pub(crate) journal: Arc<Journal>,
    pub(crate) begin: Begin,
    /// A predecessor has begun it.
    pub(crate) is_inherited: bool,
}

/// What answers the kernel.
pub(crate) enum Front {
    Own(FuseFilesystem),
    Library(Box<S3FuseFilesystem<Client>>),
}

pub(crate) fn prepare(options: &Options, variable: Variable<'_>) -> Result<Prepared, Refused> {
    let path = options.path()?;
    let (journal, mut known) = match &options.survival_folder {
        Some(folder) => Journal::open(folder).map_err(cannot_serve)?,
        None => (Journal::off(), None),
    };
    let journal = Arc::new(journal);
    let cache_folder = cache::folder(options)?;
    let container = memory::container_limit();
    let memory = memory::limit(options.memory_target, container);
    let (read_part, write_part) = options.part_sizes();
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let parts = PartConfig::with_read_write_sizes(size(read_part), size(write_part)).validate(memory);
    let parts = parts.map_err(bad_option)?;
    let pool = PagedPool::config()
        .with_candidate_sizes([
            CandidateSize::prunable(SMALL_BUFFER),
            CandidateSize::prunable(parts.read_size_bytes),
            CandidateSize::new(parts.write_size_bytes),
        ])
        .with_memory_limit(memory.bytes())
        .with_maintenance_interval(RETURN_BUFFERS_EVERY)
        .build();
    let part_sizes = (parts.read_size_bytes, parts.write_size_bytes);
    let timeout = ServerTimeout::new(options.server_timeout()).map_err(cannot_serve)?;
    let left = known.as_ref().map(|known| known.uploads.clone()).unwrap_or_default();
    let unfinished_uploads = Unfinished::new(Arc::clone(&journal), left);
    let telemetry = Arc::new(Telemetry {
        server_timeout: Arc::clone(&timeout),
        unfinished_uploads: Arc::clone(&unfinished_uploads),
    });
    let found_in = known.as_ref().map(|known| known.begin.region.as_str());
    let Connected { client, first, personality, region } =
        connect(options, part_sizes, pool.clone(), &telemetry, found_in, variable)?;
    refuse_append(options, &path, personality)?;
    let abandoned = known.as_ref().map(Known::abandoned_uploads).unwrap_or_default();
    if !abandoned.is_empty() {
        abort_all(client.clone(), abandoned, unfinished_uploads).map_err(cannot_serve)?;
    }

    let config = filesystem_config(options, personality);
    let superblock =
        SuperblockConfig { cache_config: config.cache_config.clone(), s3_personality: config.s3_personality };
    let runtime = Runtime::new(first.event_loop_group());
    let caches = cache::Caches::new(options, &path, cache_folder.as_ref());
    let prefetcher = caches.prefetcher(&client, &runtime, pool.clone()).map_err(cannot_serve)?;
    let bucket = path.bucket.to_string();
    let superblock = Superblock::new(client.clone(), path, superblock);
    let threads = size(options.max_threads);
    let (workers, finish) = Workers::new(threads).map_err(cannot_serve)?;
    if options.library_front {
        let files = S3Filesystem::new(client, prefetcher, pool, runtime, superblock, config);
        let front = Front::Library(Box::new(S3FuseFilesystem::new(files, None)));
        return Ok(Prepared { front, survival: None, finish, cache_folder, threads });
    }
    let numbers = Arc::new(Numbers::new(Arc::clone(&journal), known.as_mut()));
    let known = known.as_ref();
    let (known_for, confirms) = (options.known_for(), options.keeps_lookups_briefly());
    let inodes = Inodes::new(superblock, client.clone(), known_for, confirms, Arc::clone(&numbers));
    let files = S3Filesystem::new(client.clone(), prefetcher, pool, runtime, inodes, config);
    let spools = Spools::new(options.survival_folder.clone(), memory::for_spools(container));
    let storage = Storage::new(files, client, bucket, spools, Arc::clone(&journal), numbers, timeout);
    let retries = known.map(|known| known.retries.clone()).unwrap_or_default();
    let front = Front::Own(FuseFilesystem {
        open_files: Arc::new(OpenFiles::new(storage, known, options.incremental_upload)),
        workers,
        repetitions: Arc::new(Repetitions::new(Arc::clone(&journal), retries)),
        ignores_attributes: options.ignore_attribute_changes,
    });
    let survival = options.survival_folder.as_ref().map(|_| Survival {
        journal,
        begin: known.map_or(Begin { init: Vec::new(), region }, |known| known.begin.clone()),
        is_inherited: known.is_some(),
    });
    Ok(Prepared { front, survival, finish, cache_folder, threads })
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

/// The cache for files that other clients may change at any time. Opening a file confirms what is known about it; the answers
/// to everything else, such as `stat`, may be this old.
fn brief_cache() -> CacheConfig {
    CacheConfig {
        serve_lookup_from_cache: true,
        file_ttl: KNOWN_FOR,
        use_negative_cache: true,
        negative_cache_ttl: KNOWN_TO_BE_MISSING_FOR,
        ..CacheConfig::default()
    }
}

fn filesystem_config(options: &Options, personality: S3Personality) -> S3FilesystemConfig {
    let defaults = S3FilesystemConfig::default();
    let brief = options.keeps_lookups_briefly();
    let mut cache_config = if brief { brief_cache() } else { CacheConfig::new(options.metadata_ttl()) };
    let mut prefetcher_config = defaults.prefetcher_config;
    // The blocks of a cache are larger.
    if !options.library_front && !options.caches_contents() {
        prefetcher_config.initial_request_size = FIRST_BYTES;
    }
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
        prefetcher_config,
        read_only: options.read_only,
        ..defaults
    }
}
