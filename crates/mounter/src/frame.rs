//! Messages on the socket: a header that says what follows and how long it is, then JSON. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::reply::{Code, Refused};

/// Of the contract. Raised when one side must not misread the other.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"s3m";
/// Magic, version, length as four bytes, the highest first.
pub const HEADER: usize = 8;
/// A bucket, some options and variables: a few kilobytes. No more is ever held in memory for a peer.
pub const LONGEST: usize = 128 * 1024;

#[derive(Debug, Error)]
pub enum FrameError {
    #[error("the message begins with {0:02x?}, which no hand-over does")]
    Magic([u8; 3]),
    #[error(
        "the message is of version {0} of the hand-over, this side speaks {VERSION}: update the older one"
    )]
    Version(u8),
    #[error("the message has {0} bytes; a hand-over may have {LONGEST}")]
    TooLong(usize),
    /// Without what was found there, which may be a secret.
    #[error("the message is not what was expected: {:?} error at byte {}", .0.classify(), .0.column())]
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
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LONGEST);
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
    if length > LONGEST { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use crate::reply::Reply;
    use proptest::prelude::*;

    fn split(frame: &[u8]) -> Option<([u8; HEADER], &[u8])> {
        let (header, body) = frame.split_first_chunk()?;
        Some((*header, body))
    }

    proptest! {
        #[test]
        fn an_order_reads_back(
            bucket in ".{0,20}",
            volume_id in ".{0,20}",
            arguments in proptest::collection::vec(".{0,20}", 0..5),
            environment in proptest::collection::btree_map(".{0,9}", ".{0,20}", 0..5),
        ) {
            let order = Order { volume_id, bucket, arguments, environment };
            let frame = encode(&order).unwrap();
            let (header, body) = split(&frame).unwrap();
            prop_assert_eq!(body_length(header).unwrap(), body.len());
            prop_assert_eq!(decode::<Order>(body).unwrap(), order);
        }

        #[test]
        fn no_bytes_do_harm(header: [u8; HEADER], body: Vec<u8>) {
            if let Ok(length) = body_length(header) {
                prop_assert!(length <= LONGEST);
            }
            let _ = decode::<Order>(&body);
            let _ = decode::<Reply>(&body);
        }

        /// What a bit flipped on its way, or a newer peer, may make of an order.
        #[test]
        fn a_damaged_order_is_refused_or_still_an_order(at in 0usize..200, bits: u8) {
            let mut frame = encode(&Order { bucket: "b".repeat(80), ..Order::default() }).unwrap();
            let at = at % frame.len();
            frame[at] ^= bits;
            let (header, body) = split(&frame).unwrap();
            let read = body_length(header).and_then(|_| decode::<Order>(body));
            match read {
                Ok(order) => prop_assert!(at >= 4 || bits == 0, "{:?} from a damaged head", order),
                Err(error) => {
                    let code = Refused::from(&error).code;
                    prop_assert_eq!(code, if at == 3 { Code::WrongVersion } else { Code::Garbled });
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refused = |header: &[u8; HEADER]| Refused::from(&body_length(*header).unwrap_err());
        assert_eq!(refused(b"GET / HT").code, Code::Garbled);
        assert_eq!(refused(b"s3m\x02\0\0\0\0").code, Code::WrongVersion);
        assert!(refused(b"s3m\x01\xff\0\0\0").message.contains("4278190080 bytes"));
        let long = Order { bucket: "b".repeat(LONGEST), ..Order::default() };
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
