//! The two requests with which the library looks a name up, answered from one listing where that is possible.

use mountpoint_s3_client::error::{HeadObjectError, ListObjectsError, ObjectClientError};
use mountpoint_s3_client::types::{HeadObjectParams, HeadObjectResult, ListObjectsResult};
use mountpoint_s3_client::{ObjectClient as _, S3RequestError};

use super::Client;
use crate::lookup::{Asked, FoundInListing, KEYS, Named, OfFolder, asked};
use crate::server_timeout::Answer;

impl Client {
    /// The name that is looked up, if a listing can say what it stands for: names are listed in order.
    pub(super) fn asked(&self) -> Option<Asked> {
        self.listings().and_then(|_| asked())
    }

    /// Whether there is such a folder.
    pub(super) async fn list_named(
        &self,
        asked: &Asked,
        bucket: &str,
        delimiter: &str,
        folder: &str,
    ) -> Answer<ListObjectsResult, ListObjectsError> {
        let key = folder.strip_suffix(delimiter).unwrap_or(folder);
        let page = match self.answer(self.get().list_objects(bucket, None, delimiter, KEYS, key)).await {
            Ok(page) => Some(page),
            // A policy may allow to list what is in the folder, and not what is beside it.
            Err(ObjectClientError::ClientError(S3RequestError::Forbidden(..))) => None,
            Err(error) => return Err(error),
        };
        match asked.answer(key, page).await {
            OfFolder::Page(page) => Ok(page),
            OfFolder::FoundObject => {
                let found = S3RequestError::InternalError(Box::new(FoundInListing));
                Err(ObjectClientError::ClientError(found))
            }
            OfFolder::Unknown => {
                self.answer(self.get().list_objects(bucket, None, delimiter, 1, folder)).await
            }
        }
    }

    /// Whether there is such an object. If the listing fails, its error ends the lookup, and this waits until then.
    pub(super) async fn head_named(
        &self,
        asked: &Asked,
        bucket: &str,
        key: &str,
        params: &HeadObjectParams,
    ) -> Answer<HeadObjectResult, HeadObjectError> {
        match asked.named().await {
            Named::Unknown => self.answer(self.get().head_object(bucket, key, params)).await,
            Named::Folder | Named::Object | Named::Nothing => {
                Err(ObjectClientError::ServiceError(HeadObjectError::NotFound))
            }
        }
    }
}
