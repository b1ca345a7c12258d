//! What comes back from a hand-over: the bucket is served, or why it is not.

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Serving(Serving),
    Refused(Refused),
}

/// The facts about the process that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// As seen in the Mountpoint Pod.
    pub pid: u32,
    pub version: String,
}

/// Why there is no mount, in words that name the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message} ({code})")]
pub struct Refused {
    pub code: Code,
    pub message: String,
}

impl Refused {
    /// The longest sentence that is passed on; whatever is longer is somebody else's dump.
    pub const LONGEST: usize = 4096;

    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > Self::LONGEST {
            let cut = (0..=Self::LONGEST).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(cut);
        }
        Self { code, message }
    }
}

/// Stable: programs decide by it, dashboards count it. A code of a newer version reads as [`Code::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The hand-over came from a user who may not order mounts.
    WrongPeer,
    /// The message cannot be read.
    Garbled,
    /// The message is of another version of the contract.
    WrongVersion,
    /// No descriptor, more than one, or not of `/dev/fuse`.
    WrongDescriptor,
    /// The peer did not send its message in time.
    Late,
    /// This mounter serves already.
    Busy,
    BadOption,
    BadPrefix,
    /// No bucket of this server can have that name.
    BadBucket,
    NoSuchBucket,
    AccessDenied,
    /// The secret key is not the one that belongs to the access key.
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
    /// Anything else; the sentence tells.
    #[serde(other)]
    Failed,
}

impl std::fmt::Display for Code {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(formatter)
    }
}

impl Reply {
    /// Starts the line in which a mount process tells its verdict; everything else it prints is its log.
    const VERDICT: &str = "s3-csi-verdict ";

    pub fn to_line(&self) -> String {
        // Strings and numbers: there is nothing that JSON could not hold.
        format!("{}{}", Self::VERDICT, serde_json::to_string(self).unwrap_or_default())
    }

    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(Self::VERDICT)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_one_line_that_reads_back() {
        for reply in [
            Reply::Serving(Serving { pid: 7, version: "1.2".into() }),
            Reply::Refused(Refused::new(Code::NoSuchBucket, "there is no\nbucket `b`")),
        ] {
            let line = reply.to_line();
            assert!(!line.contains('\n'));
            assert_eq!(Reply::from_line(&line), Some(reply));
        }
        assert_eq!(Reply::from_line("2026-01-01 INFO s3-csi-verdict {}"), None);
        assert_eq!(Reply::from_line("s3-csi-verdict {}"), None);
    }

    #[test]
    fn a_code_of_the_future_is_a_failure_in_words() {
        let line = r#"s3-csi-verdict {"refused":{"code":"moon-phase","message":"wait"}}"#;
        assert_eq!(Reply::from_line(line), Some(Reply::Refused(Refused::new(Code::Failed, "wait"))));
    }

    #[test]
    fn codes_are_written_in_kebab_case() {
        assert_eq!(Code::UntrustedCertificate.to_string(), "untrusted-certificate");
        assert_eq!(
            Refused::new(Code::Late, "no message").to_string(),
            "no message (late)",
            "as an error it names its code"
        );
    }

    #[test]
    fn sentences_are_bounded_between_characters() {
        let refused = Refused::new(Code::Failed, "ü".repeat(Refused::LONGEST));
        assert_eq!(refused.message.len(), Refused::LONGEST);
        assert_eq!(Refused::new(Code::Failed, "x".repeat(5000)).message.len(), Refused::LONGEST);
    }
}
