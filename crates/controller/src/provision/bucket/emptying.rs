//! Deletes what is in a bucket or below a prefix, one turn at a time: neither a prefix that fills up as fast as it is emptied,
//! nor a server that takes its time for each request, may keep other volumes waiting. The next turn goes on.

use std::time::{Duration, Instant};

use contract::s3::S3Failure;

use super::error::BucketError;
use crate::provision::class::prefix::Prefix;
use crate::provision::s3::client::{S3Client, list_carries};
use crate::provision::s3::credentials::Account;
use crate::provision::volume_id::place;

/// What S3 lists and deletes with one request.
const BATCH: usize = 1000;
/// Of a turn.
const MOST_BATCHES: usize = 20;
/// Of a turn. Each takes a request.
const MOST_UPLOADS: usize = 200;
/// A turn ends after this long and the request under way: a batch has up to a thousand keys that take a request each.
const LONGEST: Duration = Duration::from_secs(10);

pub(super) struct Turn<'a> {
    s3: &'a S3Client,
    account: &'a Account,
    bucket: &'a str,
    until: Instant,
}

/// What a turn leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    More,
    /// It deleted everything that it found.
    Emptied,
    /// There was nothing to delete.
    WasEmpty,
}

impl Remaining {
    fn after(found: bool) -> Self {
        if found { Self::Emptied } else { Self::WasEmpty }
    }
}

impl<'a> Turn<'a> {
    pub(super) fn begin(s3: &'a S3Client, account: &'a Account, bucket: &'a str) -> Self {
        Self { s3, account, bucket, until: Instant::now() + LONGEST }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Lists and deletes until the list is empty: of a prefix, or of the whole bucket. After a restart the list shows what
    /// is left.
    pub(super) async fn delete_objects(&self, prefix: Option<&Prefix>) -> Result<Remaining, BucketError> {
        let Self { s3, account, bucket, .. } = *self;
        let (mut before, address) = (None, s3.endpoint.address(account.region()));
        let text = prefix.map(Prefix::as_str).unwrap_or_default();
        for _ in 0..MOST_BATCHES {
            let keys = match s3.list(account, bucket, text, BATCH).await {
                Ok(keys) if keys.is_empty() => return Ok(Remaining::after(before.is_some())),
                Ok(keys) => keys,
                Err(error) if error.is(S3Failure::NoSuchBucket) => {
                    return Ok(Remaining::after(before.is_some()));
                }
                Err(error) => return Err(BucketError::Delete(error)),
            };
            check_deletable(&address, bucket, prefix, &keys, before.as_ref())?;
            // Not after the first list: without a second one, objects that cannot be deleted would never be noticed.
            if before.is_some() && self.is_over() {
                return Ok(Remaining::More);
            }
            if self.delete(&keys).await? == Remaining::More {
                return Ok(Remaining::More);
            }
            before = keys.into_iter().next();
        }
        Ok(Remaining::More)
    }

    /// At least one request, however long the list before it took: each turn gets on.
    async fn delete(&self, keys: &[String]) -> Result<Remaining, BucketError> {
        let Self { s3, account, bucket, .. } = *self;
        let (listed, odd): (Vec<&String>, Vec<&String>) = keys.iter().partition(|key| list_carries(key));
        for key in odd {
            s3.delete_object(account, bucket, key).await.map_err(BucketError::Delete)?;
            if self.is_over() {
                return Ok(Remaining::More);
            }
        }
        // An empty list would be refused.
        if !listed.is_empty() {
            s3.delete_objects(account, bucket, &listed).await.map_err(BucketError::Delete)?;
        }
        Ok(Remaining::Emptied)
    }

    pub(super) async fn abort_uploads(&self) -> Result<Remaining, BucketError> {
        let Self { s3, account, bucket, .. } = *self;
        let uploads = match s3.uploads(account, bucket, MOST_UPLOADS).await {
            Ok(uploads) => uploads,
            Err(error) if error.is(S3Failure::NoSuchBucket) => Vec::new(),
            Err(error) => return Err(BucketError::Delete(error)),
        };
        for upload in &uploads {
            s3.abort_upload(account, bucket, upload).await.map_err(BucketError::Delete)?;
            if self.is_over() {
                return Ok(Remaining::More);
            }
        }
        let all = uploads.len() < MOST_UPLOADS;
        Ok(if all { Remaining::after(!uploads.is_empty()) } else { Remaining::More })
    }
}

/// Whether listed objects may be deleted. `before` is the first key of the list before.
fn check_deletable(
    endpoint: &str,
    bucket: &str,
    prefix: Option<&Prefix>,
    keys: &[String],
    before: Option<&String>,
) -> Result<(), BucketError> {
    let (endpoint, place) = (endpoint.to_owned(), || place(bucket, prefix));
    // A server that ignores prefixes would list the whole bucket.
    if let Some(key) = keys.iter().find(|key| !prefix.is_none_or(|prefix| prefix.contains(key))) {
        return Err(BucketError::Outside { endpoint, place: place(), key: key.clone() });
    }
    // A server that reports success and keeps its objects would be asked again and again.
    match keys.first().filter(|first| Some(*first) == before) {
        Some(key) => Err(BucketError::Undeletable { endpoint, place: place(), key: key.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn objects_outside_of_the_prefix_or_undeletable_ones_are_refused() {
        let prefix = Prefix::parse("mine").unwrap();
        let check = |keys: &[&str], before: Option<&str>| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            check_deletable(
                "http://s3.test",
                "shared",
                Some(&prefix),
                &keys,
                before.map(str::to_owned).as_ref(),
            )
        };
        assert!(check(&["mine/a", "mine/b"], None).is_ok());
        assert!(check(&["mine/c"], Some("mine/a")).is_ok());
        assert!(matches!(check(&["mine/a", "others/a"], None), Err(BucketError::Outside { .. })));
        let stays = check(&["mine/a", "mine/b"], Some("mine/a")).unwrap_err();
        assert_eq!(stays.code(), Code::FailedPrecondition);
        for word in ["\"mine/a\"", "`mine/`", "`shared`", "http://s3.test", "remove its lock"] {
            assert!(stays.to_string().contains(word), "{word} is not in: {stays}");
        }
    }
}
