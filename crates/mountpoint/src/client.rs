//! The S3 client of the file system: the library's, with five differences. It changes its keys when their file changes, it
//! never sends a request that some servers misunderstand, it does not replace objects unless that is allowed, it does not
//! wait without end, and it sends small files in one request and fetches them when they are opened.

mod confirm;
mod renew_keys;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use async_trait::async_trait;
use contract::keys::Keys;
use mountpoint_s3_client::config::S3ClientConfig;
use mountpoint_s3_client::error::{
    CopyObjectError, DeleteObjectError, GetObjectAttributesError, GetObjectError, HeadObjectError,
    ListObjectsError, ObjectClientError, PutObjectError, RenameObjectError,
};
use mountpoint_s3_client::types::{
    CopyObjectParams, CopyObjectResult, DeleteObjectResult, GetObjectAttributesResult, GetObjectParams,
    HeadObjectParams, HeadObjectResult, ListObjectsResult, ObjectAttribute, PutObjectParams, PutObjectResult,
    PutObjectSingleParams, RenameObjectParams, RenameObjectResult,
};
use mountpoint_s3_client::{NewClientError, ObjectClient, S3CrtClient, S3RequestError};
use mountpoint_s3_crt::s3::client::BufferPoolUsageStats;
use thiserror::Error;

use crate::credentials::{KeysError, Source, Stamp, stamp};
use crate::first_read::FirstReads;
use crate::listings::{Listings, listed};
use crate::put::{IF_NONE_MATCH, Put, Single};
use crate::renewal::keep_renewed;
use crate::server_timeout::{Answer, Awaited, ServerTimeout};
use crate::upload::Upload;
use crate::uploads::Uploads;

#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("cannot create the S3 client: {0}")]
    New(#[from] NewClientError),
}

/// How to make the library's client, again after each change of the keys.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) config: S3ClientConfig,
    pub(crate) source: Source,
}

impl Recipe {
    pub(crate) fn make(&self, keys: Option<&Keys>) -> Result<S3CrtClient, ClientError> {
        Ok(S3CrtClient::new(self.config.clone().auth_config(self.source.auth(keys)?))?)
    }
}

/// What may be done to existing objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// Servers that do not know `RenameObject` mistake it for an upload of an empty object: the source stays, the
    /// destination is emptied, and the response is success. Only directory buckets are sure to know it.
    pub(crate) rename: bool,
    /// Without it, an object that another client created since it was looked up is not replaced. Only the server can
    /// check that, with `If-None-Match`.
    pub(crate) overwrite: bool,
}

/// How requests are saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savings {
    /// New files of one part at most are sent in a single request. The library always takes three.
    pub(crate) single_put: bool,
    /// Small files are fetched when they are opened, as long as no more than these were opened and not read yet.
    pub(crate) first_reads: usize,
    /// Reads at random places fetch nothing else.
    pub(crate) exact_reads: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    recipe: Recipe,
    rights: Rights,
    savings: Savings,
    timeout: Arc<ServerTimeout>,
    uploads: Arc<Uploads>,
    listings: Listings,
    first_reads: FirstReads<<S3CrtClient as ObjectClient>::GetObjectResponse>,
    current: RwLock<S3CrtClient>,
    /// Locked while changed keys are read; other requests use the old ones meanwhile.
    seen: Mutex<Seen>,
}

/// The file of the keys as it was last read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) stamp: Option<Stamp>,
    pub(crate) keys: Option<Keys>,
    /// After a read that failed, which may be a matter of moments.
    retry_at: Option<Instant>,
}

impl Seen {
    pub(crate) fn new(stamp: Option<Stamp>, keys: Option<Keys>) -> Self {
        Self { stamp, keys, retry_at: None }
    }
}

impl Client {
    /// `first` was made by [`Recipe::make`] and has worked.
    pub(crate) fn new(
        recipe: Recipe,
        first: S3CrtClient,
        seen: Seen,
        rights: Rights,
        savings: Savings,
        timeout: Arc<ServerTimeout>,
    ) -> Self {
        let expires = seen.keys.as_ref().and_then(|keys| keys.expires);
        let (current, seen) = (RwLock::new(first), Mutex::new(seen));
        let (uploads, listings) = (Arc::default(), Listings::default());
        let first_reads = FirstReads::new(savings.first_reads);
        let inner = Inner { recipe, rights, savings, timeout, uploads, listings, first_reads, current, seen };
        let inner = Arc::new(inner);
        if let Some(expires) = expires {
            let (identity, inner) = (inner.recipe.source.identity(), Arc::downgrade(&inner));
            // Not by the request that finds them expired: it would wait for another server, and all others behind it.
            thread::spawn(move || {
                // The working directory is the one shared with the node.
                keep_renewed(&inner, expires, &identity, Path::new("."), Inner::replace_keys);
            });
        }
        Self(inner)
    }

    pub(crate) fn uploads(&self) -> Arc<Uploads> {
        Arc::clone(&self.0.uploads)
    }

    /// `None` for directory buckets, which are not listed in the order of names.
    pub(crate) fn listings(&self) -> Option<&Listings> {
        (!self.0.rights.rename).then_some(&self.0.listings)
    }

    pub(crate) fn fetches_exactly(&self) -> bool {
        self.0.savings.exact_reads
    }

    /// A reader was closed.
    pub(crate) fn end_reading(&self, handle: u64) {
        self.0.first_reads.end(handle);
    }

    async fn answer<T, E>(&self, request: impl Future<Output = Answer<T, E>>) -> Answer<T, E> {
        self.0.timeout.limit_request(Awaited::Answer, request).await
    }

    async fn transfer<T, E>(&self, request: impl Future<Output = Answer<T, E>>) -> Answer<T, E> {
        self.0.timeout.limit_request(Awaited::Transfer, request).await
    }

    /// The client with the newest keys. Checking the file takes a microsecond, which is nothing beside a request.
    fn get(&self) -> S3CrtClient {
        let inner = &*self.0;
        if let (Some(path), Ok(mut seen)) = (inner.recipe.source.file(), inner.seen.try_lock()) {
            let newest = stamp(path);
            let due = seen.retry_at.is_none_or(|at| at <= Instant::now());
            if newest.is_some() && newest != seen.stamp && due {
                inner.renew(&mut seen, newest);
            }
        }
        inner.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl ObjectClient for Client {
    type GetObjectResponse = <S3CrtClient as ObjectClient>::GetObjectResponse;
    type PutObjectRequest = Upload;
    type ClientError = S3RequestError;

    fn read_part_size(&self) -> usize {
        self.get().read_part_size()
    }

    fn write_part_size(&self) -> usize {
        self.get().write_part_size()
    }

    fn initial_read_window_size(&self) -> Option<usize> {
        self.get().initial_read_window_size()
    }

    fn mem_usage_stats(&self) -> Option<BufferPoolUsageStats> {
        self.get().mem_usage_stats()
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Answer<DeleteObjectResult, DeleteObjectError> {
        self.answer(self.get().delete_object(bucket, key)).await
    }

    async fn copy_object(
        &self,
        source_bucket: &str,
        source_key: &str,
        bucket: &str,
        key: &str,
        params: &CopyObjectParams,
    ) -> Answer<CopyObjectResult, CopyObjectError> {
        self.transfer(self.get().copy_object(source_bucket, source_key, bucket, key, params)).await
    }

    async fn get_object(
        &self,
        bucket: &str,
        key: &str,
        params: &GetObjectParams,
    ) -> Answer<Self::GetObjectResponse, GetObjectError> {
        let begun = self.0.first_reads.take(key, params.if_match.as_ref(), params.range.as_ref());
        match begun {
            Some(answer) => Ok(answer),
            None => self.transfer(self.get().get_object(bucket, key, params)).await,
        }
    }

    async fn list_objects(
        &self,
        bucket: &str,
        continuation_token: Option<&str>,
        delimiter: &str,
        max_keys: usize,
        prefix: &str,
    ) -> Answer<ListObjectsResult, ListObjectsError> {
        // While it lists a folder, the library also looks up that folder and its parent, with requests for one key: a page's
        // token would make them find nothing.
        let (listed, asked) = (listed().filter(|_| max_keys > 1), Instant::now());
        let token = listed.as_ref().map_or(continuation_token, |listed| listed.token(continuation_token));
        let client = self.get();
        let request = client.list_objects(bucket, token, delimiter, max_keys, prefix);
        let mut answer = self.answer(request).await;
        if let (Some(listed), Ok(page)) = (&listed, &mut answer) {
            listed.note_answer(asked, prefix);
            if let Some(listings) = self.listings() {
                listings.note(listed, token, prefix, page, asked);
            }
            if listed.is_one_page() {
                page.next_continuation_token = None;
            }
        }
        answer
    }

    async fn head_object(
        &self,
        bucket: &str,
        key: &str,
        params: &HeadObjectParams,
    ) -> Answer<HeadObjectResult, HeadObjectError> {
        self.answer(self.get().head_object(bucket, key, params)).await
    }

    async fn put_object(
        &self,
        bucket: &str,
        key: &str,
        params: &PutObjectParams,
    ) -> Answer<Self::PutObjectRequest, PutObjectError> {
        let replaces = self.0.uploads.condition(key);
        let mut params = params.clone();
        if replaces.is_none() && !self.0.rights.overwrite {
            params.custom_headers.push((IF_NONE_MATCH.to_owned(), "*".to_owned()));
        }
        let single = match replaces {
            Some(etag) => Single::Replacing(etag),
            None if !self.0.savings.single_put => Single::Empty,
            None if !self.0.rights.overwrite => Single::New,
            None if self.0.uploads.creates_object(key) => Single::PerhapsNew,
            None => Single::Empty,
        };
        let put = Put::new(self.get(), bucket, key, params.clone(), single);
        Ok(Upload::new(put, key, &params, Arc::clone(&self.0.timeout)))
    }

    async fn put_object_single(
        &self,
        bucket: &str,
        key: &str,
        params: &PutObjectSingleParams,
        contents: impl AsRef<[u8]> + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        self.transfer(self.get().put_object_single(bucket, key, params, contents)).await
    }

    async fn get_object_attributes(
        &self,
        bucket: &str,
        key: &str,
        max_parts: Option<usize>,
        part_number_marker: Option<usize>,
        attributes: &[ObjectAttribute],
    ) -> Answer<GetObjectAttributesResult, GetObjectAttributesError> {
        self.answer(self.get().get_object_attributes(bucket, key, max_parts, part_number_marker, attributes))
            .await
    }

    async fn rename_object(
        &self,
        bucket: &str,
        source: &str,
        destination: &str,
        params: &RenameObjectParams,
    ) -> Answer<RenameObjectResult, RenameObjectError> {
        if self.0.rights.rename {
            self.answer(self.get().rename_object(bucket, source, destination, params)).await
        } else {
            Err(ObjectClientError::ServiceError(RenameObjectError::NotImplementedError))
        }
    }
}
