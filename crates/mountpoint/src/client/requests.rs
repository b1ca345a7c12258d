//! The requests that the library sends.

use std::borrow::Cow;
use std::time::Instant;

use async_trait::async_trait;
use mountpoint_s3_client::error::{
    CopyObjectError, DeleteObjectError, GetObjectAttributesError, GetObjectError, HeadObjectError,
    ListObjectsError, ObjectClientError, PutObjectError, RenameObjectError,
};
use mountpoint_s3_client::types::{
    CopyObjectParams, CopyObjectResult, DeleteObjectResult, GetObjectAttributesResult, GetObjectParams,
    HeadObjectParams, HeadObjectResult, ListObjectsResult, ObjectAttribute, PutObjectParams, PutObjectResult,
    PutObjectSingleParams, RenameObjectParams, RenameObjectResult,
};
use mountpoint_s3_client::{ObjectClient, S3CrtClient, S3RequestError};
use mountpoint_s3_crt::s3::client::BufferPoolUsageStats;

use super::{Client, Renames};
use crate::listed::{Listed, listed};
use crate::put::{IF_NONE_MATCH, Put, Single};
use crate::server_timeout::Answer;
use crate::upload::{Sent, Upload};
use crate::uploads::Condition;

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
        if max_keys == 1
            && let Some(asked) = self.asked()
        {
            return self.list_named(&asked, bucket, delimiter, prefix).await;
        }
        // While it lists a folder, the library also looks up that folder and its parent, with requests for one key: a page's
        // token would make them find nothing.
        let (listed, asked) = (listed().filter(|_| max_keys > 1), Instant::now());
        if let Some(answer) = listed.as_ref().and_then(Listed::take_answer) {
            return Ok(answer);
        }
        let token = listed.as_ref().map_or(continuation_token, |listed| listed.token(continuation_token));
        let keys = listed.as_ref().map_or(Cow::Borrowed(prefix), |listed| listed.prefix(prefix));
        let max_keys = listed.as_ref().map_or(max_keys, |listed| listed.max_keys(max_keys));
        let client = self.get();
        let request = client.list_objects(bucket, token, delimiter, max_keys, &keys);
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
        if listed().is_some_and(|listed| listed.is_answered()) {
            return Err(ObjectClientError::ServiceError(HeadObjectError::NotFound));
        }
        match self.asked() {
            Some(asked) => self.head_named(&asked, bucket, key, params).await,
            None => self.answer(self.get().head_object(bucket, key, params)).await,
        }
    }

    async fn put_object(
        &self,
        bucket: &str,
        key: &str,
        params: &PutObjectParams,
    ) -> Answer<Self::PutObjectRequest, PutObjectError> {
        let replaces = self.0.uploads.condition(key);
        if let Some(Condition { etag, copied: Some(length) }) = replaces {
            return self.continue_upload(key, params, (etag, length)).await;
        }
        let mut params = params.clone();
        if replaces.is_none() && !self.0.rights.overwrite {
            params.custom_headers.push((IF_NONE_MATCH.to_owned(), "*".to_owned()));
        }
        let single = match replaces {
            Some(Condition { etag, .. }) => Single::Replacing(etag),
            None if !self.0.savings.single_put => Single::Empty,
            None if !self.0.rights.overwrite => Single::New,
            None if self.0.uploads.creates_object(key) => Single::PerhapsNew,
            None => Single::Empty,
        };
        let put = Put::new(self.get(), bucket, key, params.clone(), single, self.0.raw.watch(key));
        Ok(Upload::new(Sent::ByLibrary(put), key, &params, self.timeout(), self.uploads()))
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
        match self.0.rights.renames {
            Renames::ByServer => {
                self.answer(self.get().rename_object(bucket, source, destination, params)).await
            }
            Renames::ByCopy | Renames::Refused => {
                Err(ObjectClientError::ServiceError(RenameObjectError::NotImplementedError))
            }
        }
    }
}
