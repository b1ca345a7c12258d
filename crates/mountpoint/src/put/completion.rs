//! What another process needs to complete an upload as the S3 client does it.

use mountpoint_s3_client::types::{PutObjectParams, PutObjectTrailingChecksums};

use super::{Body, IF_NONE_MATCH, Put, Single};
use crate::journal::{Checksums, Completion, Encryption, Terms};

impl Put {
    /// It is about to be completed. What is sent in one request has no upload that another process could complete.
    pub(crate) fn note_completion(&self, file: u64, mut completion: Completion) {
        if let (Body::Sent(_), Some(watch)) = (&self.body, &self.watch) {
            completion.terms = terms(&self.params, &self.single, completion.terms.encryption);
            watch.completing(file, completion);
        }
    }
}

/// On which terms the parts become the object.
fn terms(params: &PutObjectParams, single: &Single, encryption: Encryption) -> Terms {
    let checksums = match &params.trailing_checksums {
        PutObjectTrailingChecksums::Disabled | PutObjectTrailingChecksums::ReviewOnly(_) => None,
        PutObjectTrailingChecksums::Composite(_) => Some(Checksums::Crc32c),
        PutObjectTrailingChecksums::FullObject(_) => Some(Checksums::Crc64nvme),
    };
    let replaces = match single {
        Single::Replacing(etag) => Some(etag.as_str().to_owned()),
        Single::Empty | Single::New | Single::PerhapsNew => None,
    };
    let creates = params.custom_headers.iter().any(|(name, _)| name == IF_NONE_MATCH);
    Terms { creates, replaces, checksums, encryption }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint_s3_client::types::ChecksumAlgorithm;

    #[test]
    fn another_process_completes_an_upload_on_the_same_terms() {
        let params = || {
            PutObjectParams::new()
                .trailing_checksums(PutObjectTrailingChecksums::Composite(ChecksumAlgorithm::Crc32c))
        };
        let terms = |params: &PutObjectParams, single| super::terms(params, &single, Encryption::default());
        let replacing = terms(&params(), Single::Replacing("etag".into()));
        assert_eq!((replacing.replaces.as_deref(), replacing.creates), (Some("etag"), false));
        assert_eq!(replacing.checksums, Some(Checksums::Crc32c));
        let new = terms(&params().add_custom_header(IF_NONE_MATCH.into(), "*".into()), Single::New);
        assert_eq!((new.replaces, new.creates), (None, true));
        let off = PutObjectTrailingChecksums::ReviewOnly(ChecksumAlgorithm::Crc32c);
        let last_wins = terms(&params().trailing_checksums(off), Single::PerhapsNew);
        assert_eq!(last_wins, Terms::default());
    }
}
