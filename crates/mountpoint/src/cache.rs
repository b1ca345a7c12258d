//! The caches of contents, the downloads that use them, and how often they have what is looked for.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io, thread};

use async_trait::async_trait;
use futures::executor::block_on;
use mounter::handover::{Code, Refused};
use mountpoint_s3_fs::Runtime;
use mountpoint_s3_fs::data_cache::{
    BlockIndex, CacheLimit, ChecksummedBytes, DataCache, DataCacheError, DataCacheResult, DiskDataCache,
    DiskDataCacheConfig, ExpressDataCache, ExpressDataCacheConfig, ManagedCacheDir, MultilevelDataCache,
};
use mountpoint_s3_fs::memory::PagedPool;
use mountpoint_s3_fs::object::ObjectId;
use mountpoint_s3_fs::prefetch::{CursorId, PrefetcherBuilder};
use mountpoint_s3_fs::s3::S3Path;

use crate::client::Client;
use crate::memory::SMALL_BUFFER;
use crate::meter::METER;
use crate::options::Options;

const MIB: usize = 1024 * 1024;
/// In bytes: the unit of the caches, which fits a small buffer of the pool.
const BLOCK: usize = SMALL_BUFFER;

/// Where the library has its cache, below the folder that it is given.
const FOLDER: &str = "mountpoint-cache";
/// What the cache of a process that has ended is renamed to, with a number.
const LEFTOVER: &str = "leftover-cache-";

/// The folder of the cache, empty: the contents of an earlier one belong to a process that ended.
pub(crate) fn folder(options: &Options) -> Result<Option<ManagedCacheDir>, Refused> {
    let Some(parent) = options.cache_folder() else { return Ok(None) };
    let unusable = |error: &dyn std::fmt::Display| {
        let message = format!(
            "cannot write to the cache folder {}: {error}; configure a cache for the volume",
            parent.display()
        );
        Refused::new(Code::CacheNotWritable, message)
    };
    set_aside(parent);
    let folder = ManagedCacheDir::new_from_parent_with_cache_key(parent, None, true)
        .map_err(|error| unusable(&error))?;
    try_writing(folder.as_path()).map_err(|error| unusable(&error))?;
    remove_leftovers(parent.to_owned());
    Ok(Some(folder))
}

/// A cache can have many files, and programs wait for this process. What cannot be renamed is removed before the cache is used.
fn set_aside(parent: &Path) {
    let taken = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
    };
    let mut leftovers = (0_u32..).map(|number| parent.join(format!("{LEFTOVER}{number}")));
    // None is taken for long: another thread removes them.
    let _ = leftovers
        .find(|leftover| !fs::rename(parent.join(FOLDER), leftover).is_err_and(|error| taken(&error)));
}

/// Also those that earlier processes had no time for. What cannot be removed takes room of the disk and harms nothing else.
fn remove_leftovers(parent: PathBuf) {
    let is_leftover = |name: &OsStr| name.as_encoded_bytes().starts_with(LEFTOVER.as_bytes());
    let remove = move || {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if is_leftover(&entry.file_name())
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, path = %entry.path().display(), "cannot remove the cache of an earlier process");
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("remove-caches".to_owned()).spawn(remove) {
        tracing::warn!(%error, "cannot remove the caches of earlier processes");
    }
}

fn try_writing(folder: &Path) -> io::Result<()> {
    let file = folder.join("writable");
    fs::write(&file, b"yes")?;
    fs::remove_file(file)
}

pub(crate) struct Caches {
    disk: Option<DiskDataCacheConfig>,
    express: Option<ExpressDataCacheConfig>,
}

impl Caches {
    pub(crate) fn new(options: &Options, path: &S3Path, folder: Option<&ManagedCacheDir>) -> Self {
        let limit = match options.max_cache_size {
            Some(mib) => CacheLimit::TotalSize {
                max_size: usize::try_from(mib).unwrap_or(usize::MAX).saturating_mul(MIB),
            },
            None => CacheLimit::default(),
        };
        let disk = folder.map(|folder| DiskDataCacheConfig {
            cache_directory: folder.as_path_buf(),
            block_size: BLOCK as u64,
            limit,
        });
        let express = options.cache_xz.as_ref().map(|bucket| {
            ExpressDataCacheConfig::new(bucket.as_str(), &path.bucket)
                .block_size(BLOCK as u64)
                .sse(options.encryption())
        });
        Self { disk, express }
    }

    pub(crate) fn prefetcher(
        self,
        client: &Client,
        runtime: &Runtime,
        pool: PagedPool,
    ) -> Result<PrefetcherBuilder<Client>, DataCacheError> {
        let disk = self.disk.map(|config| DiskDataCache::new(config, pool));
        let express = self.express.map(|config| ExpressDataCache::new(client.clone(), config));
        if let Some(express) = &express {
            block_on(express.verify_cache_valid())?;
        }
        let client = client.clone();
        Ok(match (disk, express) {
            (Some(disk), Some(express)) => {
                let both = MultilevelDataCache::new(Arc::new(disk), express, runtime.clone());
                PrefetcherBuilder::caching_builder(Counted(both), client)
            }
            (Some(disk), None) => PrefetcherBuilder::caching_builder(Counted(disk), client),
            (None, Some(express)) => PrefetcherBuilder::caching_builder(Counted(express), client),
            (None, None) => PrefetcherBuilder::default_builder(client),
        })
    }
}

/// A cache whose hits and misses are counted.
struct Counted<C>(C);

#[async_trait]
impl<C: DataCache + Send + Sync> DataCache for Counted<C> {
    async fn get_block(
        &self,
        key: &ObjectId,
        block: BlockIndex,
        offset: u64,
        object_size: usize,
        cursor: Option<CursorId>,
    ) -> DataCacheResult<Option<ChecksummedBytes>> {
        let found = self.0.get_block(key, block, offset, object_size, cursor).await;
        METER.looked_in_cache(matches!(found, Ok(Some(_))));
        found
    }

    async fn put_block(
        &self,
        key: ObjectId,
        block: BlockIndex,
        offset: u64,
        bytes: ChecksummedBytes,
        object_size: usize,
    ) -> DataCacheResult<()> {
        self.0.put_block(key, block, offset, bytes, object_size).await
    }

    fn block_size(&self) -> u64 {
        self.0.block_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_of_earlier_processes_are_set_aside_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let cache = parent.path().join(FOLDER);
        set_aside(parent.path());
        for number in 0..2 {
            fs::create_dir(&cache).unwrap();
            fs::write(cache.join("block"), b"old").unwrap();
            set_aside(parent.path());
            assert!(!cache.exists() && parent.path().join(format!("{LEFTOVER}{number}/block")).exists());
        }
        fs::create_dir(&cache).unwrap();
        fs::write(cache.join("block"), b"new").unwrap();
        remove_leftovers(parent.path().to_owned());
        while fs::read_dir(parent.path()).unwrap().count() > 1 {
            thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(fs::read(cache.join("block")).unwrap(), b"new");
    }
}
