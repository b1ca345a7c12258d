//! The command line, with the variables the reference's chart sets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use contract::names::{MOUNTPOINT_NAMESPACE, is_namespace_name};
use contract::quantity::Quantity;
use service::driver_identity::IdentityFlags;
use service::logs::LogFlags;

use crate::provision::s3::client::Addressing;
use crate::provision::s3::proxy::ProxyFlags;
use crate::resources::Bounds;
use crate::warm::PerNode;

/// Assigns workloads to Mountpoint Pods, and provisions buckets for claims.
#[derive(Parser, Clone, Debug)]
#[command(name = "s3-csi-controller", version)]
pub struct Flags {
    /// Namespace in which Mountpoint Pods are created.
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", default_value = MOUNTPOINT_NAMESPACE, value_parser = name)]
    pub mountpoint_namespace: String,

    /// Image of Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_IMAGE", value_parser = filled)]
    pub mountpoint_image: String,

    /// Pull policy of that image.
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub mountpoint_image_pull_policy: String,

    /// Names of the secrets with which that image is pulled, separated by commas.
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub mountpoint_image_pull_secrets: Vec<String>,

    /// Program that Mountpoint Pods run.
    #[arg(long, env = "MOUNTPOINT_CONTAINER_COMMAND", default_value = "/bin/s3-csi-mounter", value_parser = filled)]
    pub mountpoint_container_command: String,

    /// Version of the mount process in that image, recorded in a label. Default: the driver's version.
    #[arg(long, env = "MOUNTPOINT_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub mountpoint_version: String,

    /// Priority class of Mountpoint Pods; none if empty.
    #[arg(long, env = "MOUNTPOINT_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_priority_class_name: String,

    /// Priority class of Mountpoint Pods for which headroom was reserved, and which preempt the headroom pods. Headroom is
    /// reserved if this and the class of headroom pods are set.
    #[arg(long, env = "MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_preempting_priority_class_name: String,

    /// Priority class of headroom pods, which reserve headroom for Mountpoint Pods of workloads that ask for it.
    #[arg(long, env = "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_headroom_priority_class_name: String,

    /// Image of headroom pods, whose own program waits; that of Mountpoint Pods if empty.
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE", default_value = "")]
    pub headroom_image: String,

    /// Pull policy of that image.
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub headroom_image_pull_policy: String,

    /// More labels for headroom pods, as a JSON object. They have those of Mountpoint Pods, too.
    #[arg(long, env = "MOUNTPOINT_HEADROOM_POD_LABELS", default_value = "{}", value_parser = texts)]
    pub headroom_pod_labels: Texts,

    /// More labels for Mountpoint Pods, as a JSON object.
    #[arg(long, env = "MOUNTPOINT_POD_LABELS", default_value = "{}", value_parser = texts)]
    pub mountpoint_pod_labels: Texts,

    /// More annotations for Mountpoint Pods, as a JSON object.
    #[arg(long, env = "MOUNTPOINT_POD_ANNOTATIONS", default_value = "{}", value_parser = texts)]
    pub mountpoint_pod_annotations: Texts,

    /// Whether the cluster is `OpenShift`, which assigns the users of pods and refuses pods that choose their own. `auto`
    /// looks for its API group.
    #[arg(long, env = "OPENSHIFT", value_enum, default_value = "auto")]
    pub openshift: Detected,

    /// Requests and limits of Mountpoint Pods, as a JSON object, where their volume says nothing else. A cache comes on
    /// top of the limits.
    #[arg(long, env = "MOUNTPOINT_RESOURCES", default_value = "{}", value_parser = Bounds::parse)]
    pub mountpoint_resources: Bounds,

    /// Size of an `emptyDir` cache whose volume sets none; no limit if empty.
    #[arg(long, env = "MOUNTPOINT_CACHE_SIZE_LIMIT", default_value = "", value_parser = size)]
    pub mountpoint_cache_size_limit: Size,

    /// `ConfigMap` in the Mountpoint namespace whose `ca-bundle.crt` is trusted; none if empty.
    #[arg(long, env = "TLS_CA_CERT_CONFIGMAP", default_value = "")]
    pub tls_ca_cert_configmap: String,

    /// Mountpoint Pods that are kept running on each node without a volume, for faster mounts: a number, `off`, or `auto` for
    /// one on nodes that have used a bucket within the last hour and two where one was not enough.
    #[arg(long, env = "WARM_MOUNTPOINT_PODS", default_value = "0")]
    pub warm_mountpoint_pods: PerNode,

    /// How many of them there may be on all nodes together.
    #[arg(long, env = "MOST_WARM_MOUNTPOINT_PODS", default_value_t = 100)]
    pub most_warm_mountpoint_pods: usize,

    /// Whether mounts move to Mountpoint Pods of this version after an upgrade, while programs use them. Otherwise they stay
    /// in the pods that they are in until their workloads end.
    #[arg(long, env = "MOVE_ON_UPGRADE", default_value_t = true, action = clap::ArgAction::Set)]
    pub move_on_upgrade: bool,

    /// Whether to provision claims. Set `off` if a csi-provisioner does.
    #[arg(long, env = "PROVISIONING", value_enum, default_value = "on")]
    pub provisioning: Provisioning,

    /// Where to serve the CSI controller service, for a csi-provisioner; nowhere if absent.
    #[arg(long, env = "CSI_SOCKET")]
    pub csi_socket: Option<PathBuf>,

    /// URL of the S3 endpoint where buckets are created; Amazon's for the region if empty.
    #[arg(long, env = "AWS_ENDPOINT_URL", default_value = "")]
    pub endpoint_url: String,

    /// Region to sign requests for, unless a class or a Secret names another.
    #[arg(long, env = "AWS_REGION", default_value = "us-east-1")]
    pub region: String,

    /// How requests name a bucket.
    #[arg(long, env = "S3_ADDRESSING", value_enum, default_value_t)]
    pub s3_addressing: Addressing,

    #[command(flatten)]
    pub s3_proxy: ProxyFlags,

    /// File of the authorities that the S3 endpoint's certificate may be of; the system's if absent.
    #[arg(long, env = "AWS_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,

    /// Folder with the driver's own keys, as a Secret is mounted: `access_key_id`, `secret_access_key`, `session_token`.
    /// Without it, `AWS_ACCESS_KEY_ID` and so on.
    #[arg(long, env = "CREDENTIALS_DIR")]
    pub credentials_dir: Option<PathBuf>,

    #[command(flatten)]
    pub identity: IdentityFlags,

    /// Where probes and metrics are served.
    #[arg(long, env = "PROBES_ADDRESS", default_value = "[::]:8080")]
    pub probes_address: SocketAddr,

    /// Whether to elect a leader, with a Lease.
    #[arg(long, env = "LEADER_ELECTION", default_value_t = true, action = clap::ArgAction::Set)]
    pub leader_election: bool,

    /// Namespace of that Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kube-system", value_parser = name)]
    pub lease_namespace: String,

    #[command(flatten)]
    pub logs: LogFlags,
}

impl Flags {
    /// Whether headroom is reserved for the Mountpoint Pods of workloads that ask for it.
    pub fn reserves_headroom(&self) -> bool {
        let classes =
            [&self.mountpoint_preempting_priority_class_name, &self.mountpoint_headroom_priority_class_name];
        classes.into_iter().all(|class| !class.is_empty())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Provisioning {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Detected {
    Auto,
    Yes,
    No,
}

impl Detected {
    /// `detected` is what a look at the cluster has found.
    pub fn or(self, detected: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Auto => detected(),
            Self::Yes => true,
            Self::No => false,
        }
    }
}

/// `None` if the text was empty.
#[derive(Clone, Debug, Default)]
pub struct Size(pub Option<Quantity>);

fn size(text: &str) -> Result<Size, String> {
    match (text.trim(), Quantity::parse(text.trim())) {
        ("", _) => Ok(Size(None)),
        (_, Some(size)) if size.units() > 0 => Ok(Size(Some(size))),
        _ => Err("is not a size: write it like `1Gi`".to_owned()),
    }
}

/// Labels or annotations.
#[derive(Clone, Debug, Default)]
pub struct Texts(pub BTreeMap<String, String>);

fn filled(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn name(text: &str) -> Result<String, String> {
    is_namespace_name(text)
        .then(|| text.to_owned())
        .ok_or_else(|| "is not the name of a namespace: lower-case letters, digits and dashes".to_owned())
}

fn texts(text: &str) -> Result<Texts, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    serde_json::from_str(text).map(Texts).map_err(|error| format!("is not a JSON object of strings: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(arguments: &[&str]) -> Result<Flags, String> {
        let image = if arguments.iter().any(|argument| argument.starts_with("--mountpoint-image=")) {
            ""
        } else {
            "--mountpoint-image=i"
        };
        let all = ["s3-csi-controller", image].into_iter().chain(arguments.iter().copied());
        Flags::try_parse_from(all.filter(|argument| !argument.is_empty())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_work() {
        Flags::command().debug_assert();
        let flags = parse(&[]).unwrap();
        assert_eq!(flags.mountpoint_namespace, "mount-s3");
        assert!(flags.leader_election);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (argument, word) in [
            ("--mountpoint-namespace=Mount_S3", "--mountpoint-namespace"),
            ("--mountpoint-pod-labels=[1]", "not a JSON object"),
            ("--headroom-pod-labels={\"team\":1}", "not a JSON object"),
            ("--mountpoint-image-pull-policy=Sometimes", "IfNotPresent"),
            ("--mountpoint-image=", "must not be empty"),
            ("--mountpoint-resources={\"limits\":{\"memory\":\"much\"}}", "limits.memory"),
            ("--mountpoint-cache-size-limit=0", "is not a size"),
            ("--warm-mountpoint-pods=many", "neither a number nor `off` or `auto`"),
            ("--probes-address=here", "--probes-address"),
            ("--leader-election=perhaps", "--leader-election"),
        ] {
            let error = parse(&[argument]).unwrap_err();
            assert!(error.contains(word), "{argument}: {error}");
        }
    }
}
