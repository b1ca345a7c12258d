//! S3's XML about the parts of an upload.

use instant_xml::FromXml;
use mountpoint_s3_crt::http::request_response::Headers;
use thiserror::Error;

const NAMESPACE: &str = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

#[derive(Debug, Error)]
pub(crate) enum Unreadable {
    #[error("cannot parse the S3 server's answer: {0}")]
    Xml(#[from] instant_xml::Error),
    #[error("the S3 server's answer has no {0}")]
    Missing(&'static str),
}

/// A part of an upload as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    etag: String,
    checksum: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "InitiateMultipartUploadResult")]
struct Begun {
    #[xml(rename = "UploadId")]
    id: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "CopyPartResult")]
struct Copied {
    #[xml(rename = "ETag")]
    etag: Option<String>,
    #[xml(rename = "ChecksumCRC64NVME")]
    checksum: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "CompleteMultipartUploadResult")]
struct Completed {
    #[xml(rename = "ETag")]
    etag: Option<String>,
}

/// Amazon's answers have it, and some of other servers have not.
fn without_namespace(body: &str) -> String {
    body.replacen(NAMESPACE, "", 1)
}

pub(super) fn upload_id(body: &str) -> Result<String, Unreadable> {
    let begun: Begun = instant_xml::from_str(&without_namespace(body))?;
    begun.id.filter(|id| !id.is_empty()).ok_or(Unreadable::Missing("UploadId"))
}

pub(super) fn copied(body: &str) -> Result<Part, Unreadable> {
    let Copied { etag, checksum } = instant_xml::from_str(&without_namespace(body))?;
    Ok(Part { etag: etag.ok_or(Unreadable::Missing("ETag"))?, checksum })
}

pub(super) fn completed(body: &str) -> Result<String, Unreadable> {
    let completed: Completed = instant_xml::from_str(&without_namespace(body))?;
    completed.etag.ok_or(Unreadable::Missing("ETag"))
}

pub(super) fn sent(headers: &Headers) -> Result<Part, Unreadable> {
    Ok(Part { etag: etag(headers)?, checksum: header(headers, "x-amz-checksum-crc64nvme") })
}

pub(super) fn etag(headers: &Headers) -> Result<String, Unreadable> {
    header(headers, "ETag").ok_or(Unreadable::Missing("ETag"))
}

pub(super) fn length(headers: &Headers) -> Option<u64> {
    header(headers, "Content-Length")?.parse().ok()
}

pub(super) fn header(headers: &Headers, name: &str) -> Option<String> {
    headers.get_as_optional_string(name).ok().flatten()
}

/// The body of the request that completes the upload.
pub(super) fn parts(parts: &[Part]) -> String {
    let part = |(number, Part { etag, checksum }): (usize, &Part)| {
        let checksum = checksum.as_ref().map_or_else(String::new, |checksum| {
            format!("<ChecksumCRC64NVME>{checksum}</ChecksumCRC64NVME>")
        });
        format!("<Part><ETag>{etag}</ETag>{checksum}<PartNumber>{number}</PartNumber></Part>")
    };
    let parts: String = (1..).zip(parts).map(part).collect();
    format!("<CompleteMultipartUpload{NAMESPACE}>{parts}</CompleteMultipartUpload>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_and_without_a_namespace() {
        for namespace in [NAMESPACE, ""] {
            let begun = format!(
                "<?xml version=\"1.0\"?><InitiateMultipartUploadResult{namespace}><Bucket>b</Bucket><Key>k</Key>\
                 <UploadId>7a</UploadId></InitiateMultipartUploadResult>"
            );
            assert_eq!(upload_id(&begun).unwrap(), "7a");
            let part = format!(
                "<CopyPartResult{namespace}><LastModified>now</LastModified><ETag>&quot;e&quot;</ETag>\
                 <ChecksumCRC64NVME>c=</ChecksumCRC64NVME></CopyPartResult>"
            );
            assert_eq!(copied(&part).unwrap(), Part { etag: "\"e\"".into(), checksum: Some("c=".into()) });
            let done = format!(
                "<CompleteMultipartUploadResult{namespace}><Location>l</Location><ETag>\"e-2\"</ETag>\
                 </CompleteMultipartUploadResult>"
            );
            assert_eq!(completed(&done).unwrap(), "\"e-2\"");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = "<CopyPartResult></CopyPartResult>";
        assert!(matches!(copied(missing), Err(Unreadable::Missing("ETag"))));
        assert!(matches!(copied("<html></html>"), Err(Unreadable::Xml(_))));
        assert!(matches!(
            upload_id("<InitiateMultipartUploadResult></InitiateMultipartUploadResult>"),
            Err(Unreadable::Missing("UploadId"))
        ));
    }

    #[test]
    fn parts_are_numbered_in_their_order() {
        let part = |etag: &str, checksum: Option<&str>| Part {
            etag: etag.to_owned(),
            checksum: checksum.map(str::to_owned),
        };
        let body = parts(&[part("\"a\"", Some("c=")), part("\"b\"", None)]);
        assert!(body.contains(
            "<Part><ETag>\"a\"</ETag><ChecksumCRC64NVME>c=</ChecksumCRC64NVME><PartNumber>1</PartNumber></Part>\
             <Part><ETag>\"b\"</ETag><PartNumber>2</PartNumber></Part>"
        ));
    }
}
