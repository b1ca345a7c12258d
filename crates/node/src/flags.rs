//! Command-line flags. Names of environment variables are the reference's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use contract::arguments::Arguments;
use contract::names::MOUNTPOINT_NAMESPACE;
use contract::options::MountOption;
use contract::volume::Volume;
use service::driver_identity::IdentityFlags;
use service::logs::LogFlags;

/// Mounts buckets for the workloads of one node.
#[derive(Clone, Debug, Parser)]
#[command(name = "s3-csi-node", version)]
pub struct Flags {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The kubelet's root directory: the same path in the container as on the node.
    #[arg(long, env = "KUBELET_PATH", default_value = "/var/lib/kubelet")]
    pub kubelet_path: PathBuf,
    /// Namespace of the Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", default_value = MOUNTPOINT_NAMESPACE)]
    pub mountpoint_namespace: String,
    /// Whether to register with the kubelet: `on`, or `off` if a node-driver-registrar sidecar does.
    #[arg(long, env = "REGISTRATION", value_enum, default_value = "on")]
    pub registration: Registration,
    /// Maximum number of volumes on the node; 0 for no limit.
    #[arg(long, env = "MAX_VOLUMES", default_value_t = 0)]
    pub max_volumes: u32,
    /// URL of the S3 endpoint.
    #[arg(long, env = "AWS_ENDPOINT_URL", default_value = "")]
    pub endpoint_url: String,
    /// Region to sign requests for, unless the volume sets another.
    #[arg(long, env = "AWS_REGION", default_value = "")]
    pub region: String,
    /// How mounts address buckets: in the path, or as host names. Access points are always host names.
    #[arg(long, env = "S3_ADDRESSING", value_enum, default_value = "path")]
    pub s3_addressing: Addressing,
    /// Proxy of mounts for an `https` endpoint, unless the volume sets `mountpointEnv.HTTPS_PROXY`; none if empty.
    #[arg(long, env = "MOUNTPOINT_HTTPS_PROXY", default_value = "")]
    pub mountpoint_https_proxy: String,
    /// Host names and domains that mounts reach without that proxy, separated by commas.
    #[arg(long, env = "MOUNTPOINT_NO_PROXY", default_value = "")]
    pub mountpoint_no_proxy: String,
    /// Directory with the driver's own keys, a mounted Secret: `access_key_id`, `secret_access_key`, `session_token`.
    /// Keys that are missing there are taken from `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
    #[arg(long, env = "CREDENTIALS_DIR")]
    pub credentials_dir: Option<PathBuf>,
    #[command(flatten)]
    pub identity: IdentityFlags,
    /// URL of the EKS Pod Identity agent that workloads use (`authenticationSource: pod`). If empty, they need a role
    /// (`eks.amazonaws.com/role-arn`).
    #[arg(long, env = "POD_IDENTITY_AGENT_URL")]
    pub pod_identity_agent: Option<String>,
    /// Path of the CA bundle in Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_CA_BUNDLE")]
    pub mountpoint_ca_bundle: Option<String>,
    /// Listen address for probes and metrics.
    #[arg(long, env = "PROBES_ADDRESS", default_value = "[::]:9808")]
    pub probes_address: SocketAddr,
    #[command(flatten)]
    pub logs: LogFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Registration {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Addressing {
    Path,
    Virtual,
}

impl Addressing {
    /// Sets the option of the mount process, whose own default are host names.
    pub fn apply(self, volume: &Volume, arguments: &mut Arguments) {
        if self == Self::Path && !volume.is_access_point() {
            arguments.set_if_absent(MountOption::ForcePathStyle, None);
        }
    }
}

impl Flags {
    /// Environment of every mount process of this installation.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let all = [
            ("AWS_ENDPOINT_URL", Some(&self.endpoint_url)),
            ("AWS_REGION", Some(&self.region)),
            ("AWS_CA_BUNDLE", self.mountpoint_ca_bundle.as_ref()),
            ("HTTPS_PROXY", Some(&self.mountpoint_https_proxy)),
            ("NO_PROXY", Some(&self.mountpoint_no_proxy)),
        ];
        let set = all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)));
        set.map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::authentication::SecretPresence;
    use contract::volume_plan::VolumePlan;

    #[test]
    fn buckets_are_in_the_path_unless_that_cannot_be() {
        let access_point = "arn:aws:s3:eu-west-1:111122223333:accesspoint/mine";
        for (addressing, bucket, given, expected) in [
            (Addressing::Path, "bucket", &[][..], &["--force-path-style"][..]),
            (Addressing::Virtual, "bucket", &[], &[]),
            (Addressing::Virtual, "bucket", &["force-path-style"], &["--force-path-style"]),
            (Addressing::Path, access_point, &[], &[]),
        ] {
            let attributes = [("bucketName".to_owned(), bucket.to_owned())].into();
            let mut plan = VolumePlan::parse(&attributes, SecretPresence::Absent, given).unwrap();
            addressing.apply(&plan.volume, &mut plan.arguments);
            assert_eq!(plan.arguments.render(), expected, "{addressing:?} {bucket}");
        }
    }

    #[test]
    fn only_flags_that_are_set_reach_the_mount_process() {
        let flags =
            Flags::parse_from(["s3-csi-node", "--node-name=n", "--endpoint-url=http://s3", "--region="]);
        assert_eq!(flags.environment(), [("AWS_ENDPOINT_URL".to_owned(), "http://s3".to_owned())].into());
        let flags = Flags::parse_from(["s3-csi-node", "--node-name=n", "--mountpoint-https-proxy=http://p"]);
        assert_eq!(flags.environment(), [("HTTPS_PROXY".to_owned(), "http://p".to_owned())].into());
    }
}
