//! What lists of the S3 server say. Bounded: a server that sends more than it was asked for, or keys that no object can
//! have, would decide how much memory the controller needs.

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
    #[error("its list cannot be read: {0}")]
    Unreadable(#[from] instant_xml::Error),
    #[error("it lists {0} entries, and was asked for {1}")]
    Many(usize, usize),
    #[error("it lists a name of {0} bytes")]
    Long(usize),
    #[error("it lists nothing and says that there is more")]
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

/// We ask for keys as they stand in URLs, because XML cannot hold all of them; a server that does not do that does not say
/// that it has done so. A blank is `+`, at Amazon, or `%20`.
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
