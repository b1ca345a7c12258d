//! What a container of the driver reports on itself: the endpoint as its network and its keys see it, its clock, its mounts.
//! No port is opened for this: it needs the right to `kubectl exec` into the driver's pods.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum as _};
use contract::names::{DRIVER, MOUNT_SOURCE};
use contract::s3::S3Failure;
use controller::provision::driver_credentials::DriverCredentials;
use controller::provision::error::ProvisionError;
use controller::provision::metrics::ProvisioningMetrics;
use controller::provision::s3::client::{Addressing, S3Client};
use controller::provision::s3::credentials::{Account, Credentials};
use controller::provision::s3::endpoint::Endpoint;
use controller::provision::s3::error::ErrorKind;
use controller::provision::s3::proxy::ProxyFlags;
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use service::driver_identity::IdentityFlags;
use service::keys::DriverKeys;

/// Asked for where no volume names a bucket: that there is none shows that the keys were accepted.
const NOBODYS_BUCKET: &str = "s3-csi-self-check";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfReport {
    pub version: String,
    pub time: Timestamp,
    pub kernel: String,
    pub endpoint: String,
    pub region: String,
    /// Empty, if the container has neither keys nor an identity.
    pub answers: Vec<Answer>,
    /// Lines of the mount table that are about this driver.
    pub mounts: Vec<String>,
    /// Offset of its clock from that of the machine that runs the plugin.
    #[serde(skip)]
    pub off_by: Option<SignedDuration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub bucket: String,
    pub verdict: Verdict,
    /// With the server's own words.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    Accepted,
    NoSuchBucket,
    Denied,
    KeysRefused,
    /// The identity of the driver got no temporary keys.
    NoKeys,
    ClockSkew,
    WrongRegion,
    Unreachable,
    Untrusted,
    #[serde(other)]
    Failed,
}

impl Verdict {
    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Answered(failure) => match failure {
                S3Failure::WrongSecretKey | S3Failure::UnknownAccessKey | S3Failure::InvalidToken => {
                    Self::KeysRefused
                }
                S3Failure::ClockSkew => Self::ClockSkew,
                S3Failure::WrongRegion => Self::WrongRegion,
                S3Failure::AccessDenied => Self::Denied,
                S3Failure::NoSuchBucket => Self::NoSuchBucket,
                _ => Self::Failed,
            },
            ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::ConnectionLost => Self::Unreachable,
            ErrorKind::UntrustedCertificate => Self::Untrusted,
            ErrorKind::InvalidResponse | ErrorKind::NotSent => Self::Failed,
        }
    }

    /// `AccessDenied` for a bucket that does not exist still proves that the server accepts the keys.
    fn of_missing_bucket(kind: ErrorKind) -> Self {
        match Self::of(kind) {
            Self::NoSuchBucket | Self::Denied => Self::Accepted,
            verdict => verdict,
        }
    }
}

/// With the container's own variables and files.
pub async fn report(buckets: &[String], authorities_from_stdin: bool) -> SelfReport {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let region = variable("AWS_REGION");
    let authorities = if authorities_from_stdin { Authorities::from_stdin().ok() } else { None };
    let file = authorities.as_ref().map(Authorities::path);
    let file = file.or_else(|| std::env::var_os("AWS_CA_BUNDLE").map(PathBuf::from));
    let (endpoint, answers) = match Endpoint::parse(&variable("AWS_ENDPOINT_URL"), &region) {
        Err(error) => (variable("AWS_ENDPOINT_URL"), vec![unasked(Verdict::Failed, error.to_string())]),
        Ok(endpoint) => {
            let address = endpoint.address(None).into_owned();
            (address, ask(endpoint, buckets, file.as_deref()).await)
        }
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_ours = |line: &&str| line.contains(MOUNT_SOURCE) || line.contains(DRIVER);
    SelfReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: Timestamp::now(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        endpoint,
        region,
        answers,
        mounts: mounts.lines().filter(is_ours).map(str::to_owned).collect(),
        off_by: None,
    }
}

/// About no bucket in particular.
fn unasked(verdict: Verdict, message: String) -> Answer {
    Answer { bucket: String::new(), verdict, message }
}

/// The container's variables are those of the driver's program.
#[derive(Parser)]
struct Own {
    #[command(flatten)]
    identity: IdentityFlags,
}

/// The keys of the container, or those that its identity gets.
fn credentials(endpoint: &Endpoint, authorities: Option<&Path>) -> DriverCredentials {
    let keys = DriverKeys { folder: std::env::var_os("CREDENTIALS_DIR").map(PathBuf::from) };
    let identity = Own::try_parse_from(["self-check"]).map(|own| own.identity).unwrap_or_default();
    DriverCredentials::new(keys, &identity, endpoint.default_region(), authorities)
}

async fn ask(endpoint: Endpoint, buckets: &[String], authorities: Option<&Path>) -> Vec<Answer> {
    let keys = match credentials(&endpoint, authorities).find().await {
        Ok(keys) => keys,
        Err(ProvisionError::NoDriverKeys) => return Vec::new(),
        Err(error) => return vec![unasked(Verdict::NoKeys, error.to_string())],
    };
    let account = Account::new(Credentials::from(keys), None);
    let addressing = std::env::var("S3_ADDRESSING").ok();
    let addressing = addressing.and_then(|text| Addressing::from_str(&text, true).ok()).unwrap_or_default();
    // Variables of the controller, or of the node service, which passes them on to mounts.
    let set = |name: &str| {
        ["S3_", "MOUNTPOINT_"]
            .iter()
            .find_map(|prefix| std::env::var(format!("{prefix}{name}")).ok())
            .unwrap_or_default()
    };
    let proxy = ProxyFlags { https_proxy: set("HTTPS_PROXY"), no_proxy: set("NO_PROXY") };
    let server = S3Client::new(endpoint, addressing, authorities, &proxy, &ProvisioningMetrics::default());
    let nobodys = [NOBODYS_BUCKET.to_owned()];
    let (buckets, judge): (&[String], fn(ErrorKind) -> Verdict) =
        if buckets.is_empty() { (&nobodys, Verdict::of_missing_bucket) } else { (buckets, Verdict::of) };
    let mut answers = Vec::new();
    for bucket in buckets {
        let listed = server.list(&account, bucket, "", 1).await;
        answers.push(match listed {
            Ok(_) => Answer { bucket: bucket.clone(), verdict: Verdict::Accepted, message: String::new() },
            Err(error) => {
                Answer { bucket: bucket.clone(), verdict: judge(error.kind), message: error.to_string() }
            }
        });
    }
    answers
}

/// Certificates in memory: the container has no place to write to, and the node service has none of its own.
struct Authorities(fs::File);

impl Authorities {
    fn from_stdin() -> io::Result<Self> {
        let mut pem = Vec::new();
        io::stdin().read_to_end(&mut pem)?;
        let mut file = fs::File::from(memfd_create("authorities", MemfdFlags::CLOEXEC)?);
        file.write_all(&pem)?;
        Ok(Self(file))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_does_not_exist_proves_the_keys() {
        assert_eq!(
            Verdict::of_missing_bucket(ErrorKind::Answered(S3Failure::NoSuchBucket)),
            Verdict::Accepted
        );
        assert_eq!(
            Verdict::of_missing_bucket(ErrorKind::Answered(S3Failure::AccessDenied)),
            Verdict::Accepted
        );
        assert_eq!(
            Verdict::of_missing_bucket(ErrorKind::Answered(S3Failure::UnknownAccessKey)),
            Verdict::KeysRefused
        );
        assert_eq!(Verdict::of(ErrorKind::Answered(S3Failure::NoSuchBucket)), Verdict::NoSuchBucket);
        assert_eq!(Verdict::of(ErrorKind::InvalidResponse), Verdict::Failed);
    }

    #[test]
    fn reports_of_other_versions_are_read() {
        let newer = r#"{"version": "9", "colour": "red", "answers": [{"bucket": "b", "verdict": "puzzled", "message": "m"}]}"#;
        let report: SelfReport = serde_json::from_str(newer).unwrap();
        assert_eq!(report.answers[0].verdict, Verdict::Failed);
    }
}
