//! What S3 answers about uploads and their parts.

use instant_xml::FromXml;
use mountpoint_s3_crt::http::request_response::Headers;
use thiserror::Error;

use crate::journal::Checksums;

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
pub(crate) struct Part {
    etag: String,
    checksum: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) number: u64,
    size: u64,
    part: Part,
}

/// A page of a list of parts.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) parts: Vec<Listed>,
    pub(super) is_truncated: bool,
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
#[xml(rename = "CopyObjectResult")]
struct CopiedObject {
    #[xml(rename = "ETag")]
    etag: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "CompleteMultipartUploadResult")]
struct Completed {
    #[xml(rename = "ETag")]
    etag: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "Error")]
struct Refusal {
    #[xml(rename = "Code")]
    code: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "ListPartsResult")]
struct Parts {
    #[xml(rename = "IsTruncated")]
    is_truncated: Option<bool>,
    parts: Vec<ListedPart>,
}

#[derive(FromXml)]
#[xml(rename = "Part")]
struct ListedPart {
    #[xml(rename = "PartNumber")]
    number: Option<u64>,
    #[xml(rename = "ETag")]
    etag: Option<String>,
    #[xml(rename = "Size")]
    size: Option<u64>,
    #[xml(rename = "ChecksumCRC32C")]
    crc32c: Option<String>,
    #[xml(rename = "ChecksumCRC64NVME")]
    crc64nvme: Option<String>,
}

/// Amazon's answers have it, and some of other servers have not.
fn without_namespace(body: &str) -> String {
    body.replacen(NAMESPACE, "", 1)
}

pub(crate) fn upload_id(body: &str) -> Result<String, Unreadable> {
    let begun: Begun = instant_xml::from_str(&without_namespace(body))?;
    begun.id.filter(|id| !id.is_empty()).ok_or(Unreadable::Missing("UploadId"))
}

pub(crate) fn copied(body: &str) -> Result<Part, Unreadable> {
    let Copied { etag, checksum } = instant_xml::from_str(&without_namespace(body))?;
    Ok(Part { etag: etag.ok_or(Unreadable::Missing("ETag"))?, checksum })
}

/// S3 may answer with success before it copies, and with an error in the body when that fails.
pub(crate) fn copied_object(body: &str) -> Result<String, Unreadable> {
    let copied: CopiedObject = instant_xml::from_str(&without_namespace(body))?;
    copied.etag.ok_or(Unreadable::Missing("ETag"))
}

pub(super) fn completed(body: &str) -> Result<String, Unreadable> {
    let completed: Completed = instant_xml::from_str(&without_namespace(body))?;
    completed.etag.ok_or(Unreadable::Missing("ETag"))
}

/// Of an error.
pub(crate) fn code(body: &str) -> Option<String> {
    instant_xml::from_str::<Refusal>(&without_namespace(body)).ok()?.code
}

pub(crate) fn sent(headers: &Headers) -> Result<Part, Unreadable> {
    Ok(Part { etag: etag(headers)?, checksum: header(headers, "x-amz-checksum-crc64nvme") })
}

/// With the checksums of this kind.
pub(super) fn listed(body: &str, checksums: Option<Checksums>) -> Result<Page, Unreadable> {
    let Parts { is_truncated, parts } = instant_xml::from_str(&without_namespace(body))?;
    let parts = parts.into_iter().map(|listed| {
        let ListedPart { number, etag, size, crc32c, crc64nvme } = listed;
        let checksum = match checksums {
            Some(Checksums::Crc32c) => crc32c,
            Some(Checksums::Crc64nvme) => crc64nvme,
            None => None,
        };
        let part = Part { etag: etag.ok_or(Unreadable::Missing("ETag"))?, checksum };
        let number = number.ok_or(Unreadable::Missing("PartNumber"))?;
        Ok(Listed { number, size: size.ok_or(Unreadable::Missing("Size"))?, part })
    });
    let parts = parts.collect::<Result<_, Unreadable>>()?;
    Ok(Page { parts, is_truncated: is_truncated.unwrap_or(false) })
}

/// The parts in their order, if they are all that make up this length. Otherwise how many bytes there are.
pub(super) fn whole(mut listed: Vec<Listed>, length: u64) -> Result<Vec<Part>, u64> {
    listed.sort_by_key(|listed| listed.number);
    let has: u64 = listed.iter().map(|listed| listed.size).sum();
    let is_contiguous = (1..).zip(&listed).all(|(number, listed)| listed.number == number);
    if is_contiguous && has == length {
        return Ok(listed.into_iter().map(|listed| listed.part).collect());
    }
    Err(has)
}

pub(crate) fn etag(headers: &Headers) -> Result<String, Unreadable> {
    header(headers, "ETag").ok_or(Unreadable::Missing("ETag"))
}

pub(crate) fn length(headers: &Headers) -> Option<u64> {
    header(headers, "Content-Length")?.parse().ok()
}

pub(crate) fn header(headers: &Headers, name: &str) -> Option<String> {
    headers.get_as_optional_string(name).ok().flatten()
}

/// The body of the request that completes the upload, with the checksums of this kind.
pub(super) fn parts(parts: &[Part], checksums: Option<Checksums>) -> String {
    let part = |(number, Part { etag, checksum }): (usize, &Part)| {
        let checksum = checksums.zip(checksum.as_ref()).map_or_else(String::new, |(kind, checksum)| {
            let kind = match kind {
                Checksums::Crc32c => "ChecksumCRC32C",
                Checksums::Crc64nvme => "ChecksumCRC64NVME",
            };
            format!("<{kind}>{checksum}</{kind}>")
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
            let object = format!("<CopyObjectResult{namespace}><ETag>\"e\"</ETag></CopyObjectResult>");
            assert_eq!(copied_object(&object).unwrap(), "\"e\"");
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
        let failed = "<Error><Code>InternalError</Code></Error>";
        assert!(matches!(copied_object(failed), Err(Unreadable::Xml(_))));
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
        let of_file = [part("\"a\"", Some("c=")), part("\"b\"", None)];
        let body = parts(&of_file, Some(Checksums::Crc64nvme));
        assert!(body.contains(
            "<Part><ETag>\"a\"</ETag><ChecksumCRC64NVME>c=</ChecksumCRC64NVME><PartNumber>1</PartNumber></Part>\
             <Part><ETag>\"b\"</ETag><PartNumber>2</PartNumber></Part>"
        ));
        assert!(!parts(&of_file, None).contains("Checksum"));
        assert!(parts(&of_file, Some(Checksums::Crc32c)).contains("<ChecksumCRC32C>c=</ChecksumCRC32C>"));
    }

    #[test]
    fn listed_parts_are_whole_when_none_is_missing() {
        let part = |number: u64, size: u64| {
            format!(
                "<Part><PartNumber>{number}</PartNumber><LastModified>now</LastModified><ETag>&quot;{number}&quot;</ETag>\
                 <Size>{size}</Size><ChecksumCRC32C>c{number}=</ChecksumCRC32C></Part>"
            )
        };
        let list = |parts: &[String], checksums| {
            let page = format!(
                "<?xml version=\"1.0\"?><ListPartsResult{NAMESPACE}><UploadId>7a</UploadId><Initiator><ID>i</ID></Initiator>\
                 <PartNumberMarker>0</PartNumberMarker><IsTruncated>true</IsTruncated>{}</ListPartsResult>",
                parts.concat()
            );
            let page = listed(&page, checksums).unwrap();
            assert!(page.is_truncated);
            page.parts
        };
        let both = list(&[part(2, 3), part(1, 8)], Some(Checksums::Crc32c));
        let expected =
            ["1", "2"].map(|of| Part { etag: format!("\"{of}\""), checksum: Some(format!("c{of}=")) });
        assert_eq!(whole(both.clone(), 11).unwrap(), expected);
        assert_eq!(whole(both, 12), Err(11));
        let without = whole(list(&[part(1, 8)], None), 8).unwrap();
        assert_eq!(without, [Part { etag: "\"1\"".into(), checksum: None }]);
        assert_eq!(whole(list(&[part(2, 8)], None), 8), Err(8), "the first one is missing");
        assert_eq!(whole(Vec::new(), 8), Err(0));
    }
}
