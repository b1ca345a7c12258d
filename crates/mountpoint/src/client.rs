//! The S3 client that Mountpoint works with: the library's, with two differences. It changes its keys when their file
//! changes, and it never sends what a server might take for something else.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use mountpoint_s3_client::config::S3ClientConfig;
use mountpoint_s3_client::error::{
    CopyObjectError, DeleteObjectError, GetObjectAttributesError, GetObjectError, HeadObjectError,
    ListObjectsError, ObjectClientError, PutObjectError, RenameObjectError,
};
use mountpoint_s3_client::types::{
    CopyObjectParams, CopyObjectResult, DeleteObjectResult, GetObjectAttributesResult, GetObjectParams,
    HeadObjectParams, HeadObjectResult, ListObjectsResult, ObjectAttribute, ObjectClientResult,
    PutObjectParams, PutObjectResult, PutObjectSingleParams, RenameObjectParams, RenameObjectResult,
};
use mountpoint_s3_client::{NewClientError, ObjectClient, S3CrtClient, S3RequestError};
use mountpoint_s3_crt::s3::client::BufferPoolUsageStats;
use thiserror::Error;

use crate::credentials::{KeysError, Source, Stamp, stamp};

#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error("the S3 client: {0}")]
    New(#[from] NewClientError),
}

/// How to make a client, again with every change of keys.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) config: S3ClientConfig,
    pub(crate) source: Source,
}

impl Recipe {
    pub(crate) fn make(&self) -> Result<S3CrtClient, ClientError> {
        Ok(S3CrtClient::new(self.config.clone().auth_config(self.source.auth()?))?)
    }

    fn stamp(&self) -> Option<Stamp> {
        stamp(self.source.file()?)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    recipe: Recipe,
    /// Servers that do not know `RenameObject` take it for an upload of nothing: the source stays, the destination is
    /// emptied, and the answer is success. Only directory buckets are sure to know it.
    renames: bool,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    client: S3CrtClient,
    stamp: Option<Stamp>,
}

impl Client {
    /// `first` is one that [`Recipe::make`] made and that has proved itself.
    pub(crate) fn new(recipe: Recipe, first: S3CrtClient, stamp: Option<Stamp>, renames: bool) -> Self {
        let current = RwLock::new(Current { client: first, stamp });
        Self(Arc::new(Inner { recipe, renames, current }))
    }

    pub(crate) fn stamp(recipe: &Recipe) -> Option<Stamp> {
        recipe.stamp()
    }

    /// The client with the newest keys. Looking at the file costs a microsecond, which is nothing beside a request.
    fn get(&self) -> S3CrtClient {
        let Inner { recipe, current, .. } = &*self.0;
        let newest = recipe.stamp();
        {
            let held = current.read().unwrap_or_else(PoisonError::into_inner);
            if newest.is_none() || newest == held.stamp {
                return held.client.clone();
            }
        }
        let mut held = current.write().unwrap_or_else(PoisonError::into_inner);
        if newest != held.stamp {
            // Tried once per change, whatever comes of it: a broken file must not cost every request a client.
            held.stamp = newest;
            match recipe.make() {
                Ok(client) => {
                    held.client = client;
                    tracing::info!("credentials changed");
                }
                Err(error) => tracing::warn!(%error, "changed credentials cannot be used; the old ones stay"),
            }
        }
        held.client.clone()
    }
}

type Answer<T, E> = ObjectClientResult<T, E, S3RequestError>;

#[async_trait]
impl ObjectClient for Client {
    type GetObjectResponse = <S3CrtClient as ObjectClient>::GetObjectResponse;
    type PutObjectRequest = <S3CrtClient as ObjectClient>::PutObjectRequest;
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
        self.get().delete_object(bucket, key).await
    }

    async fn copy_object(
        &self,
        source_bucket: &str,
        source_key: &str,
        bucket: &str,
        key: &str,
        params: &CopyObjectParams,
    ) -> Answer<CopyObjectResult, CopyObjectError> {
        self.get().copy_object(source_bucket, source_key, bucket, key, params).await
    }

    async fn get_object(
        &self,
        bucket: &str,
        key: &str,
        params: &GetObjectParams,
    ) -> Answer<Self::GetObjectResponse, GetObjectError> {
        self.get().get_object(bucket, key, params).await
    }

    async fn list_objects(
        &self,
        bucket: &str,
        continuation_token: Option<&str>,
        delimiter: &str,
        max_keys: usize,
        prefix: &str,
    ) -> Answer<ListObjectsResult, ListObjectsError> {
        self.get().list_objects(bucket, continuation_token, delimiter, max_keys, prefix).await
    }

    async fn head_object(
        &self,
        bucket: &str,
        key: &str,
        params: &HeadObjectParams,
    ) -> Answer<HeadObjectResult, HeadObjectError> {
        self.get().head_object(bucket, key, params).await
    }

    async fn put_object(
        &self,
        bucket: &str,
        key: &str,
        params: &PutObjectParams,
    ) -> Answer<Self::PutObjectRequest, PutObjectError> {
        self.get().put_object(bucket, key, params).await
    }

    async fn put_object_single(
        &self,
        bucket: &str,
        key: &str,
        params: &PutObjectSingleParams,
        contents: impl AsRef<[u8]> + Send + 'static,
    ) -> Answer<PutObjectResult, PutObjectError> {
        self.get().put_object_single(bucket, key, params, contents).await
    }

    async fn get_object_attributes(
        &self,
        bucket: &str,
        key: &str,
        max_parts: Option<usize>,
        part_number_marker: Option<usize>,
        attributes: &[ObjectAttribute],
    ) -> Answer<GetObjectAttributesResult, GetObjectAttributesError> {
        self.get().get_object_attributes(bucket, key, max_parts, part_number_marker, attributes).await
    }

    async fn rename_object(
        &self,
        bucket: &str,
        source: &str,
        destination: &str,
        params: &RenameObjectParams,
    ) -> Answer<RenameObjectResult, RenameObjectError> {
        if self.0.renames {
            self.get().rename_object(bucket, source, destination, params).await
        } else {
            Err(ObjectClientError::ServiceError(RenameObjectError::NotImplementedError))
        }
    }
}
