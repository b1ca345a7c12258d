//! The copy of an object under another key, with what it has beside its content.

use std::sync::Arc;

use mountpoint_s3_crt::http::request_response::Headers;

use super::failure::{CopyError, refused};
use super::{CopyUpload, Original};
use crate::completion::{NOT_FOUND, Unreadable, answer};
use crate::journal::{Terms, Version};
use crate::put::IF_NONE_MATCH;
use crate::raw_client::{RawClient, RawError, Request, bodyless};

/// Copied with one request, which also copies the tags. S3's limit is 5 GiB, but the S3 client ends a request of which nothing
/// was heard for 30 s.
const COPIED_WHOLE: u64 = 1024 * 1024 * 1024;

const STORAGE_CLASS: &str = "x-amz-storage-class";
const METADATA: &str = "x-amz-meta-";
/// What describes the content, and is given to an upload that copies it in parts.
const PROPERTIES: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];

/// An object that is to be copied.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) original: Original,
    storage_class: Option<String>,
    properties: Vec<(String, String)>,
}

/// What the server compares, so that nothing but the object is copied and nothing is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conditions {
    is_unchanged: bool,
    is_new: bool,
}

impl Conditions {
    /// For a server that does not implement them. Fewer know those about the copy.
    fn weaker(self) -> Option<Self> {
        match self {
            Self { is_new: true, .. } => Some(Self { is_new: false, ..self }),
            Self { is_unchanged: true, .. } => Some(Self { is_unchanged: false, ..self }),
            Self { .. } => None,
        }
    }

    fn of_copy(self) -> Option<(&'static str, String)> {
        self.is_new.then(|| (IF_NONE_MATCH, "*".to_owned()))
    }
}

pub(crate) async fn look_up(raw: &RawClient, key: &str) -> Result<Option<Object>, CopyError> {
    match raw.send(bodyless("HEAD", "HeadObject", raw.path(key)))?.await {
        Ok(response) => Ok(Some(object(key, &response.headers)?)),
        Err(RawError::Refused { status: NOT_FOUND, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn object(key: &str, headers: &Headers) -> Result<Object, CopyError> {
    let length = answer::length(headers).ok_or(Unreadable::Missing("Content-Length"))?;
    let original = Original { key: key.to_owned(), etag: answer::etag(headers)?.into(), length };
    let properties = headers.iter().filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_lowercase();
        let is_property = PROPERTIES.contains(&&*name) || name.starts_with(METADATA);
        is_property.then(|| (name, value.to_string_lossy().into_owned()))
    });
    let storage_class = answer::header(headers, STORAGE_CLASS).filter(|class| is_kept(class));
    Ok(Object { original, storage_class, properties: properties.collect() })
}

/// An archived object can be copied only while it is restored, and a copy in the archive could not be read.
fn is_kept(storage_class: &str) -> bool {
    !["STANDARD", "GLACIER", "DEEP_ARCHIVE"].contains(&storage_class)
}

/// Unless the object was replaced or deleted since it was looked up, or there is one under the other key although the copy
/// replaces none. What a server does not implement of that, it does not check.
pub(crate) async fn copy_object(
    raw: &Arc<RawClient>,
    object: &Object,
    to: &str,
    replaces: Option<Version>,
) -> Result<(), CopyError> {
    let mut conditions = Conditions { is_unchanged: true, is_new: replaces.is_none() };
    let before = replaces.unwrap_or_default();
    loop {
        match (copy_if(raw, object, (to, before), conditions).await, conditions.weaker()) {
            (Err(error), Some(weaker)) if error.is_not_implemented() => conditions = weaker,
            (copied, _) => return copied,
        }
    }
}

async fn copy_if(
    raw: &Arc<RawClient>,
    object: &Object,
    (to, before): (&str, Version),
    conditions: Conditions,
) -> Result<(), CopyError> {
    let Object { original, storage_class, properties } = object;
    let storage_class = storage_class.iter().map(|class| (STORAGE_CLASS, class.clone()));
    if original.length < COPIED_WHOLE {
        let mut headers = original.headers(&raw.bucket.name, conditions.is_unchanged);
        headers.extend(storage_class.chain(conditions.of_copy()));
        let (method, operation, path) = ("PUT", "CopyObject", raw.path(to));
        let copied = raw.send(Request { method, operation, path, headers, body: Vec::new() })?.await;
        answer::copied_object(&copied.map_err(refused)?.body)?;
        return Ok(());
    }
    let properties = properties.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let upload = CopyUpload::begin(Arc::clone(raw), to, properties.chain(storage_class).collect()).await?;
    let parts = upload.copy(original, conditions.is_unchanged).await?;
    let terms = Terms { creates: conditions.is_new, ..CopyUpload::terms() };
    upload.complete(&parts, original.length, before, terms).await.map(drop)
}

#[cfg(test)]
mod tests {
    use mountpoint_s3_client::config::Allocator;
    use mountpoint_s3_crt::http::request_response::Header;

    use super::*;

    fn of(headers: &[(&str, &str)]) -> Object {
        let mut answered = Headers::new(&Allocator::default()).unwrap();
        for (name, value) in headers.iter().chain(&[("ETag", "\"e\""), ("Content-Length", "7")]) {
            answered.add_header(&Header::new(name, value)).unwrap();
        }
        object("key", &answered).unwrap()
    }

    #[test]
    fn a_copy_keeps_what_describes_the_object_and_nothing_of_the_answer() {
        let object = of(&[
            ("Content-Type", "text/plain"),
            ("x-amz-meta-Owner", "me"),
            ("Last-Modified", "now"),
            ("x-amz-request-id", "1"),
            ("Server", "s"),
        ]);
        let kept = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(object.properties, [kept("content-type", "text/plain"), kept("x-amz-meta-owner", "me")]);
        assert_eq!((object.original.etag.as_str(), object.original.length), ("\"e\"", 7));
    }

    #[test]
    fn a_copy_keeps_a_storage_class_in_which_it_can_be_read() {
        for (class, kept) in [
            ("STANDARD_IA", Some("STANDARD_IA")),
            ("INTELLIGENT_TIERING", Some("INTELLIGENT_TIERING")),
            ("GLACIER_IR", Some("GLACIER_IR")),
            ("STANDARD", None),
            ("GLACIER", None),
            ("DEEP_ARCHIVE", None),
        ] {
            assert_eq!(of(&[(STORAGE_CLASS, class)]).storage_class.as_deref(), kept, "{class}");
        }
        assert_eq!(of(&[]).storage_class, None);
    }

    #[test]
    fn conditions_that_a_server_does_not_implement_are_left_out_one_after_the_other() {
        let all = Conditions { is_unchanged: true, is_new: true };
        let unchanged = Conditions { is_unchanged: true, is_new: false };
        let none = Conditions { is_unchanged: false, is_new: false };
        assert_eq!((all.weaker(), unchanged.weaker(), none.weaker()), (Some(unchanged), Some(none), None));
    }
}
