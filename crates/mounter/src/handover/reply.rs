//! The mount reply: the bucket is being served, or why it is not.

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountReply {
    Serving(Serving),
    /// The mount process has ended, or waits to be ended, for another one to continue.
    Left,
    Refused(Refused),
}

/// The mount process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// As seen in the Mountpoint Pod.
    pub pid: u32,
    pub version: String,
}

/// Why the bucket is not served, in words that name the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message} ({code})")]
pub struct Refused {
    pub code: Code,
    pub message: String,
}

impl Refused {
    /// The longest message in bytes; longer ones are dumps of a library.
    pub const MAX_MESSAGE: usize = 4096;

    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > Self::MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE));
        }
        Self { code, message }
    }
}

/// Stable, because the node decides by it and dashboards count it. A code of a newer release reads as [`Code::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The peer is not root.
    WrongPeer,
    /// The message cannot be parsed.
    Garbled,
    /// The message has another version of the protocol.
    WrongVersion,
    /// Too few descriptors, too many, or one that is not of `/dev/fuse`.
    WrongDescriptor,
    /// The peer did not send its message in time.
    RequestTimeout,
    /// This mounter is serving a mount already.
    Busy,
    BadOption,
    BadPrefix,
    /// Not a valid bucket name for this server.
    BadBucket,
    NoSuchBucket,
    AccessDenied,
    /// The secret key does not belong to the access key.
    WrongSecret,
    UnknownKey,
    ExpiredCredentials,
    NoCredentials,
    EndpointUnreachable,
    UnknownHost,
    UntrustedCertificate,
    WrongRegion,
    CacheNotWritable,
    TimedOut,
    /// The server is overloaded, or failed: it may answer later.
    ServerError,
    /// The server refuses for a reason that has no code of its own, or its answer is not one of S3.
    Rejected,
    /// Anything else, which no user has caused; see the message.
    #[serde(other)]
    Failed,
}

impl std::fmt::Display for Code {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(formatter)
    }
}

impl MountReply {
    /// Starts the line in which a mount process reports whether it is serving; everything else it prints is its log.
    const LINE_PREFIX: &str = "s3-csi-mount-reply ";
    /// Variable with a word that only the mounter and this mount process know. It follows the prefix: the log quotes names of
    /// objects and messages of servers, which may contain line breaks and then anything, also a reply.
    pub const NONCE: &str = "S3_CSI_REPLY_NONCE";

    /// On the standard output of a mount process.
    pub fn print(&self) {
        println!("{}", self.to_line(&std::env::var(Self::NONCE).unwrap_or_default()));
    }

    fn to_line(&self, nonce: &str) -> String {
        // Strings and numbers always serialize.
        format!("{}{nonce} {}", Self::LINE_PREFIX, serde_json::to_string(self).unwrap_or_default())
    }

    pub fn from_line(line: &str, nonce: &str) -> Option<Self> {
        let (found, reply) = line.strip_prefix(Self::LINE_PREFIX)?.split_once(' ')?;
        (found == nonce).then(|| serde_json::from_str(reply).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_one_line_that_reads_back() {
        for reply in [
            MountReply::Serving(Serving { pid: 7, version: "1.2".into() }),
            MountReply::Left,
            MountReply::Refused(Refused::new(Code::NoSuchBucket, "there is no\nbucket `b`")),
        ] {
            let line = reply.to_line("word");
            assert!(!line.contains('\n'));
            assert_eq!(MountReply::from_line(&line, "word"), Some(reply));
        }
        assert_eq!(MountReply::from_line("2026-01-01 INFO s3-csi-mount-reply word {}", "word"), None);
        assert_eq!(MountReply::from_line("s3-csi-mount-reply word {}", "word"), None);
    }

    /// As a logged name of an object could be.
    #[test]
    fn a_line_without_the_word_of_its_mount_process_is_no_reply() {
        for line in [
            "s3-csi-mount-reply \"left\"",
            "s3-csi-mount-reply  \"left\"",
            "s3-csi-mount-reply guess \"left\"",
        ] {
            assert_eq!(MountReply::from_line(line, "word"), None, "{line}");
        }
    }

    #[test]
    fn an_unknown_code_reads_as_failed() {
        let line = r#"s3-csi-mount-reply word {"refused":{"code":"moon-phase","message":"wait"}}"#;
        assert_eq!(
            MountReply::from_line(line, "word"),
            Some(MountReply::Refused(Refused::new(Code::Failed, "wait")))
        );
    }

    #[test]
    fn codes_are_written_in_kebab_case() {
        assert_eq!(Code::UntrustedCertificate.to_string(), "untrusted-certificate");
        assert_eq!(
            Refused::new(Code::RequestTimeout, "no message").to_string(),
            "no message (request-timeout)",
            "as an error it names its code"
        );
    }

    #[test]
    fn messages_are_cut_between_characters() {
        let refused = Refused::new(Code::Failed, "ü".repeat(Refused::MAX_MESSAGE));
        assert_eq!(refused.message.len(), Refused::MAX_MESSAGE);
        assert_eq!(Refused::new(Code::Failed, "x".repeat(5000)).message.len(), Refused::MAX_MESSAGE);
    }
}
