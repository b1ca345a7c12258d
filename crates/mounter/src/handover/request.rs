//! What a node asks a mounter for: mostly to serve one bucket with these arguments in this environment.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Unknown fields are ignored, so that a newer node can hand over to a mounter of an older release. A change that an old
/// mounter must not ignore needs a new [`VERSION`](super::frame::VERSION).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// Only for the logs.
    pub volume_id: String,
    /// Only for the logs: that of the workload for which the node mounts. An older node sends none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_id: String,
    pub bucket: String,
    /// Options of `mount-s3`, rendered: `--allow-delete`, `--prefix=some/`.
    pub arguments: Vec<String>,
    /// The complete environment of the mount process, with the variables of its
    /// [`Credentials`](crate::credentials::Credentials).
    pub environment: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Purpose::is_mount")]
    pub purpose: Purpose,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// To serve a new mount.
    #[default]
    Mount,
    /// To continue a mount whose mounter and mount process have died in this pod. Bucket, arguments and environment are those
    /// of before, which the mounter has kept.
    Continue,
    /// To get a copy of the descriptor of the mount that is being served, so that the mount outlives the mounter.
    Fetch,
    /// To end the mount process, if another one can continue everything, and to keep the descriptor: the mount moves to
    /// another pod.
    Leave,
    /// To continue a mount of another pod. With the descriptor comes the folder in which that pod has kept what a successor
    /// needs.
    TakeOver,
}

impl Purpose {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_mount(&self) -> bool {
        *self == Self::Mount
    }

    /// How many descriptors come with the request.
    pub(super) fn descriptors(self) -> usize {
        match self {
            Self::Fetch | Self::Leave => 0,
            Self::Mount | Self::Continue => 1,
            Self::TakeOver => 2,
        }
    }
}

impl MountRequest {
    /// Without a bucket and arguments.
    pub fn only(purpose: Purpose) -> Self {
        Self { purpose, ..Self::default() }
    }

    /// Values of the environment that must not be logged. Short ones are not hidden: replacing them would garble every
    /// line and protect nothing.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        const SHORTEST: usize = 8;
        let secret = |name: &str, value: &str| {
            let name = name.to_ascii_uppercase();
            let has_password = name.contains("PROXY") && value.contains('@');
            let is_key = ["KEY", "SECRET", "TOKEN", "PASSWORD"].iter().any(|sign| name.contains(sign));
            has_password || is_key && !name.ends_with("_FILE")
        };
        let held = self.environment.iter().filter(move |(name, value)| secret(name, value));
        held.map(|(_, value)| value.as_str()).filter(|value| value.len() >= SHORTEST)
    }
}

/// Shows the names of variables without their values, which may be secrets.
impl fmt::Debug for MountRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MountRequest")
            .field("volume_id", &self.volume_id)
            .field("trace_id", &self.trace_id)
            .field("bucket", &self.bucket)
            .field("arguments", &self.arguments)
            .field("environment", &self.environment.keys().collect::<Vec<_>>())
            .field("purpose", &self.purpose)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> MountRequest {
        let environment = [
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/comm/credentials"),
            ("https_proxy", "http://me:word@proxy"),
            ("AWS_SESSION_TOKEN", "short"),
            ("AWS_REGION", "us-east-1"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        MountRequest { bucket: "b".into(), environment, ..MountRequest::default() }
    }

    /// Nodes and mounters of before know no trace id.
    #[test]
    fn a_request_without_a_trace_id_is_a_request() {
        let old = r#"{"volume_id":"v","bucket":"b","arguments":[],"environment":{}}"#;
        let request: MountRequest = serde_json::from_str(old).unwrap();
        assert_eq!(request.trace_id, "");
        assert_eq!(serde_json::to_string(&request).unwrap(), old);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", request());
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("wJalr"), "{shown}");
    }

    #[test]
    fn secrets_are_known_by_the_names_of_their_variables() {
        assert_eq!(request().secrets().collect::<Vec<_>>(), ["wJalrXUtnFEMI", "http://me:word@proxy"]);
        let mut named = request();
        named.environment = [("HTTPS_PROXY".to_owned(), "http://proxy:3128".to_owned())].into();
        assert_eq!(named.secrets().count(), 0, "an address without a password is what messages are about");
    }
}
