//! Messages on the socket: a header with version and length, then JSON. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{Code, Refused};

/// Of the protocol. Raised when an older release would misunderstand a message.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"s3m";
/// Magic, version, length as four bytes in network order.
pub const HEADER: usize = 8;
/// In bytes. A request has a few kilobytes; a peer must not make us hold more.
pub const MAX_BODY: usize = 128 * 1024;

#[derive(Debug, Error)]
pub enum FrameError {
    #[error("not a hand-over message: bad magic {0:02x?}")]
    Magic([u8; 3]),
    #[error(
        "hand-over version {0} is not supported, expected {VERSION}: update the older of node service and mounter"
    )]
    Version(u8),
    #[error("the message has {0} bytes, more than the {MAX_BODY} allowed")]
    TooLong(usize),
    /// Without the content, which may hold a secret.
    #[error("invalid message: {:?} error at byte {}", .0.classify(), .0.column())]
    Body(#[from] serde_json::Error),
}

impl From<&FrameError> for Refused {
    fn from(error: &FrameError) -> Self {
        let code = match error {
            FrameError::Version(_) => Code::WrongVersion,
            FrameError::Magic(_) | FrameError::TooLong(_) | FrameError::Body(_) => Code::Garbled,
        };
        Self::new(code, error.to_string())
    }
}

pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_BODY);
    let length = length.ok_or(FrameError::TooLong(body.len()))?;
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend(MAGIC);
    frame.push(VERSION);
    frame.extend(length.to_be_bytes());
    frame.extend(body);
    Ok(frame)
}

/// How many bytes of body follow this header.
pub fn body_length(header: [u8; HEADER]) -> Result<usize, FrameError> {
    let [a, b, c, version, length @ ..] = header;
    if [a, b, c] != MAGIC {
        return Err(FrameError::Magic([a, b, c]));
    }
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_BODY { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::{MountReply, MountRequest};
    use proptest::prelude::*;

    fn split(frame: &[u8]) -> Option<([u8; HEADER], &[u8])> {
        let (header, body) = frame.split_first_chunk()?;
        Some((*header, body))
    }

    proptest! {
        #[test]
        fn a_request_reads_back(
            bucket in ".{0,20}",
            volume_id in ".{0,20}",
            arguments in proptest::collection::vec(".{0,20}", 0..5),
            environment in proptest::collection::btree_map(".{0,9}", ".{0,20}", 0..5),
        ) {
            let request = MountRequest { volume_id, bucket, arguments, environment, ..MountRequest::default() };
            let frame = encode(&request).unwrap();
            let (header, body) = split(&frame).unwrap();
            prop_assert_eq!(body_length(header).unwrap(), body.len());
            prop_assert_eq!(decode::<MountRequest>(body).unwrap(), request);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(header: [u8; HEADER], body: Vec<u8>) {
            if let Ok(length) = body_length(header) {
                prop_assert!(length <= MAX_BODY);
            }
            let _ = decode::<MountRequest>(&body);
            let _ = decode::<MountReply>(&body);
        }

        /// A flipped bit or a newer peer may change a request.
        #[test]
        fn a_damaged_request_is_refused_or_still_valid(at in 0usize..200, bits: u8) {
            let mut frame = encode(&MountRequest { bucket: "b".repeat(80), ..MountRequest::default() }).unwrap();
            let at = at % frame.len();
            frame[at] ^= bits;
            let (header, body) = split(&frame).unwrap();
            let read = body_length(header).and_then(|_| decode::<MountRequest>(body));
            match read {
                Ok(request) => prop_assert!(at >= 4 || bits == 0, "{:?} from a damaged header", request),
                Err(error) => {
                    let code = Refused::from(&error).code;
                    prop_assert_eq!(code, if at == 3 { Code::WrongVersion } else { Code::Garbled });
                }
            }
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let refused = |header: &[u8; HEADER]| Refused::from(&body_length(*header).unwrap_err());
        assert_eq!(refused(b"GET / HT").code, Code::Garbled);
        assert_eq!(refused(b"s3m\x02\0\0\0\0").code, Code::WrongVersion);
        assert!(refused(b"s3m\x01\xff\0\0\0").message.contains("4278190080 bytes"));
        let long = MountRequest { bucket: "b".repeat(MAX_BODY), ..MountRequest::default() };
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
