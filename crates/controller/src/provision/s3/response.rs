//! S3's XML. Lists are bounded: a server that sends more than it was asked for, or keys that no object can have, would
//! decide how much memory the controller needs.

use instant_xml::FromXml;
use percent_encoding::percent_decode_str;
use thiserror::Error;

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// S3's own limit.
const LONGEST_KEY_BYTES: usize = 1024;
/// Longer than any server's; S3 sets no limit.
const LONGEST_UPLOAD_ID_BYTES: usize = 1024;

#[derive(Debug, Error)]
pub(super) enum ListingError {
    #[error("cannot parse the list: {0}")]
    Unreadable(#[from] instant_xml::Error),
    #[error("{0} entries instead of at most {1}")]
    Many(usize, usize),
    #[error("a name of {0} bytes")]
    Long(usize),
    #[error("an empty page that claims to be truncated")]
    Endless,
}

#[derive(FromXml)]
#[xml(rename = "ListBucketResult", ns(NAMESPACE))]
struct Objects {
    contents: Vec<Contents>,
    #[xml(rename = "EncodingType")]
    encoding: Option<String>,
    #[xml(rename = "IsTruncated")]
    is_truncated: Option<bool>,
}

#[derive(FromXml)]
#[xml(ns(NAMESPACE))]
struct Contents {
    #[xml(rename = "Key")]
    key: String,
}

#[derive(FromXml)]
#[xml(rename = "ListMultipartUploadsResult", ns(NAMESPACE))]
struct Unfinished {
    uploads: Vec<Upload>,
    #[xml(rename = "EncodingType")]
    encoding: Option<String>,
    #[xml(rename = "IsTruncated")]
    is_truncated: Option<bool>,
}

/// An upload of several parts that was begun and neither completed nor aborted.
#[derive(Debug, PartialEq, Eq, FromXml)]
#[xml(ns(NAMESPACE))]
pub struct Upload {
    #[xml(rename = "Key")]
    pub key: String,
    #[xml(rename = "UploadId")]
    pub id: String,
}

/// An error response, or an object that `DeleteObjects` did not delete.
#[derive(Debug, Default, PartialEq, Eq, FromXml)]
#[xml(rename = "Error")]
pub(super) struct ErrorBody {
    #[xml(rename = "Key")]
    pub(super) key: Option<String>,
    #[xml(rename = "Code")]
    pub(super) code: Option<String>,
    #[xml(rename = "Message")]
    pub(super) message: Option<String>,
}

#[derive(FromXml)]
struct DeleteResult {
    errors: Vec<ErrorBody>,
}

/// `None` for what is no error of S3, like a proxy's page.
pub(super) fn error(body: &str) -> Option<ErrorBody> {
    let error: ErrorBody = instant_xml::from_str(&without_namespace(body)).ok()?;
    error.code.is_some().then_some(error)
}

/// The first object that was not deleted. A page that cannot be parsed fails only if it may list one: the next list shows
/// what is left anyway.
pub(super) fn object_error(body: &str) -> Result<Option<ErrorBody>, instant_xml::Error> {
    match instant_xml::from_str::<DeleteResult>(&without_namespace(body)) {
        Ok(result) => Ok(result.errors.into_iter().next()),
        Err(error) if body.contains("<Error") => Err(error),
        Err(_) => Ok(None),
    }
}

/// Amazon's errors have no namespace and its results do; other servers are less consistent.
fn without_namespace(body: &str) -> String {
    body.replacen(&format!(" xmlns=\"{NAMESPACE}\""), "", 1)
}

pub(super) fn keys(page: &str, most: usize) -> Result<Vec<String>, ListingError> {
    let Objects { contents, encoding, is_truncated } = instant_xml::from_str(page)?;
    check_length(contents.len(), most, is_truncated)?;
    contents.into_iter().map(|object| key(&object.key, encoding.as_deref())).collect()
}

pub(super) fn uploads(page: &str, most: usize) -> Result<Vec<Upload>, ListingError> {
    let Unfinished { uploads, encoding, is_truncated } = instant_xml::from_str(page)?;
    check_length(uploads.len(), most, is_truncated)?;
    let decode = |Upload { key: name, id }: Upload| match id.len() {
        length if length > LONGEST_UPLOAD_ID_BYTES => Err(ListingError::Long(length)),
        _ => Ok(Upload { key: key(&name, encoding.as_deref())?, id }),
    };
    uploads.into_iter().map(decode).collect()
}

fn check_length(count: usize, most: usize, is_truncated: Option<bool>) -> Result<(), ListingError> {
    match (count, is_truncated) {
        (0, Some(true)) => Err(ListingError::Endless),
        (count, _) if count > most => Err(ListingError::Many(count, most)),
        _ => Ok(()),
    }
}

/// We ask for keys as they stand in URLs, because XML cannot hold all of them; a server that ignores this leaves out
/// `EncodingType`. A blank is `+`, at Amazon, or `%20`.
fn key(text: &str, encoding: Option<&str>) -> Result<String, ListingError> {
    let key = match encoding {
        Some("url") => {
            let spaced = text.replace('+', " ");
            let decoded = percent_decode_str(&spaced).decode_utf8();
            decoded.map_or_else(|_| text.to_owned(), String::from)
        }
        _ => text.to_owned(),
    };
    if key.len() > LONGEST_KEY_BYTES { Err(ListingError::Long(key.len())) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(inner: &str) -> String {
        format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"{NAMESPACE}\">{inner}</ListBucketResult>")
    }

    #[test]
    fn keys_are_decoded() {
        let listed = page(
            "<Name>b</Name><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>\
             <Contents><Key>a+b%2Bc%09</Key><Size>1</Size></Contents><Contents><Key>%C3%BC/x</Key></Contents>",
        );
        assert_eq!(keys(&listed, 2).unwrap(), ["a b+c\t", "ü/x"]);
        let plain = page("<Contents><Key>a+b&amp;c</Key></Contents>");
        assert_eq!(keys(&plain, 1).unwrap(), ["a+b&c"]);
        assert!(keys(&page(""), 1).unwrap().is_empty());
    }

    #[test]
    fn what_s3_never_lists_is_refused() {
        let one = "<Contents><Key>a</Key></Contents>";
        assert!(matches!(keys(&page(&one.repeat(3)), 2), Err(ListingError::Many(3, 2))));
        let long = page(&format!("<Contents><Key>{}</Key></Contents>", "a".repeat(1025)));
        assert!(matches!(keys(&long, 1), Err(ListingError::Long(1025))));
        assert!(matches!(keys(&page("<IsTruncated>true</IsTruncated>"), 1), Err(ListingError::Endless)));
        for other in ["", "<html></html>", &page(one)[..60], "<ListBucketResult></ListBucketResult>"] {
            assert!(matches!(keys(other, 1), Err(ListingError::Unreadable(_))), "{other}");
        }
    }

    #[test]
    fn uploads_are_keys_and_ids() {
        let listed = format!(
            "<ListMultipartUploadsResult xmlns=\"{NAMESPACE}\"><Bucket>b</Bucket><MaxUploads>5</MaxUploads>\
             <Upload><Initiated>now</Initiated><Key>a&lt;b</Key><UploadId>7</UploadId></Upload>\
             </ListMultipartUploadsResult>"
        );
        assert_eq!(uploads(&listed, 1).unwrap(), [Upload { key: "a<b".into(), id: "7".into() }]);
    }
}
