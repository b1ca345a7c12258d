//! The caches of contents, the downloads that use them, and how often they have what is looked for.

use std::path::Path;
use std::sync::Arc;

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

/// The folder of the cache, emptied: its contents belong to a process that ended.
pub(crate) fn folder(options: &Options) -> Result<Option<ManagedCacheDir>, Refused> {
    let Some(parent) = options.cache_folder() else { return Ok(None) };
    let unusable = |error: &dyn std::fmt::Display| {
        let message = format!(
            "cannot write to the cache folder {}: {error}; configure a cache for the volume",
            parent.display()
        );
        Refused::new(Code::CacheNotWritable, message)
    };
    let folder = ManagedCacheDir::new_from_parent_with_cache_key(parent, None, true)
        .map_err(|error| unusable(&error))?;
    try_writing(folder.as_path()).map_err(|error| unusable(&error))?;
    Ok(Some(folder))
}

fn try_writing(folder: &Path) -> std::io::Result<()> {
    let file = folder.join("writable");
    std::fs::write(&file, b"yes")?;
    std::fs::remove_file(file)
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
