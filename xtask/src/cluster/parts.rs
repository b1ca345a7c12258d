//! The components of the node and their command lines.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Cluster, NODE_ADDRESS, Node, Profile};
use crate::programs::Programs;
use crate::s3;

pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Names,
    S3,
    S3Tls,
    Etcd,
    ApiServer,
    Containerd,
    ControllerManager,
    Scheduler,
    Kubelet,
    KubeProxy,
}

impl Part {
    /// Components that need no API server, or wait for it.
    pub(crate) fn first(profile: Profile) -> &'static [Self] {
        match profile {
            Profile::Kernel => &[Self::Names, Self::S3, Self::S3Tls],
            Profile::Api | Profile::Control => {
                &[Self::Names, Self::S3, Self::S3Tls, Self::Etcd, Self::ApiServer]
            }
            Profile::Node => {
                &[Self::Etcd, Self::ApiServer, Self::Containerd, Self::Names, Self::S3, Self::S3Tls]
            }
        }
    }

    /// Components that exit if the API server does not respond.
    pub(crate) fn second(profile: Profile) -> &'static [Self] {
        match profile {
            Profile::Kernel | Profile::Api => &[],
            Profile::Control => &[Self::ControllerManager],
            Profile::Node => &[Self::Kubelet, Self::ControllerManager, Self::Scheduler, Self::KubeProxy],
        }
    }

    /// Also the name of its log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Names => "dnsmasq",
            Self::S3 => "versitygw",
            Self::S3Tls => "versitygw-tls",
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Containerd => "containerd",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// Of its program: that of the S3 server runs a second time, for TLS.
    pub(crate) fn processes(self) -> usize {
        if matches!(self, Self::S3 | Self::S3Tls) { 2 } else { 1 }
    }

    pub(crate) fn command(self, cluster: &Cluster, node: Node, programs: &Programs) -> Result<Command> {
        let loss = cluster.timing()?.loss;
        Ok(match self {
            Self::Names => names(),
            Self::S3 => s3_server(cluster, programs, "80"),
            Self::S3Tls => {
                let mut command = s3_server(cluster, programs, "443");
                command.env("VGW_CERT", cluster.pki("s3.crt")).env("VGW_KEY", cluster.pki("s3.key"));
                command
            }
            Self::Etcd => etcd(&programs.node("etcd"), &cluster.dir().join("state/etcd")),
            Self::ApiServer => {
                let mut command = api_server(cluster, &programs.node("kube-apiserver"));
                if let Some(loss) = loss {
                    for of in ["not-ready", "unreachable"] {
                        command.arg(format!("--default-{of}-toleration-seconds={}", loss.toleration_seconds));
                    }
                }
                command
            }
            Self::Containerd => {
                let mut command = Command::new("containerd");
                command.arg("--config").arg(cluster.etc(node, "containerd.toml"));
                command
            }
            Self::ControllerManager => {
                let mut command = controller_manager(cluster, &programs.node("kube-controller-manager"));
                if let Some(loss) = loss {
                    command.arg(format!("--node-monitor-grace-period={}s", loss.grace_seconds));
                    // The interval of its checks, 5 s by default.
                    command.arg("--node-monitor-period=1s");
                }
                command
            }
            Self::Scheduler => {
                let mut command = component(cluster, &programs.node("kube-scheduler"), "scheduler");
                command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
                command
            }
            Self::Kubelet => {
                let mut command = Command::new(programs.node("kubelet"));
                command.arg(flag("config", &cluster.etc(node, "kubelet.yaml")));
                command
                    .arg(flag("kubeconfig", &cluster.pki(&format!("{}.kubeconfig", node.kubelet_files()))));
                command.args([
                    "--v=2",
                    &format!("--hostname-override={}", node.name()),
                    &format!("--node-ip={}", node.address()),
                ]);
                command
            }
            Self::KubeProxy => {
                let mut command = Command::new(programs.node("kube-proxy"));
                command.arg(flag("kubeconfig", &cluster.pki("kube-proxy.kubeconfig")));
                command.args(["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"]);
                command.arg(format!("--hostname-override={}", node.name()));
                // These limits apply to the whole machine, not only to the node's network.
                command.args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"]);
                command.arg("--conntrack-tcp-timeout-close-wait=0");
                command
            }
        })
    }
}

/// The same names for pods and for the node; the S3 name also covers the virtual host of each bucket.
fn names() -> Command {
    let mut command = Command::new("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--no-resolv",
        "--no-hosts",
        "--conf-file=/dev/null",
        "--user=root",
    ]);
    command.args([
        "--log-facility=-",
        "--pid-file=",
        "--bind-dynamic",
        &format!("--listen-address={NODE_ADDRESS}"),
    ]);
    command.arg(format!("--address=/{}/{NODE_ADDRESS}", s3::HOST));
    command.args(["--address=/kubernetes.default.svc.cluster.local/10.96.0.1", "--local=//"]);
    command
}

fn s3_server(cluster: &Cluster, programs: &Programs, port: &str) -> Command {
    let state = cluster.dir().join("state/s3");
    let mut command = Command::new(programs.tool("versitygw"));
    command.env("ROOT_ACCESS_KEY_ID", s3::ROOT.access_key).env("ROOT_SECRET_ACCESS_KEY", s3::ROOT.secret_key);
    command.args([
        "--port",
        &format!("{NODE_ADDRESS}:{port}"),
        "--virtual-domain",
        s3::HOST,
        "--region",
        s3::REGION,
    ]);
    // Two servers, one for each port, see each other's changes to accounts at once.
    command.args(["--keep-alive", "--quiet", "--iam-cache-disable", "--iam-dir"]).arg(state.join("accounts"));
    command.arg("posix").arg(state.join("data"));
    command
}

fn etcd(program: &Path, data: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(flag("data-dir", data));
    command.args([
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
    ]);
    // The data lives only as long as the cluster, so there is no need to wait for the disk.
    command.arg("--unsafe-no-fsync");
    command
}

fn api_server(cluster: &Cluster, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=6443"]);
    command.args([&format!("--advertise-address={NODE_ADDRESS}"), "--service-cluster-ip-range=10.96.0.0/16"]);
    for (name, file) in [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "ca.crt"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("kubelet-certificate-authority", "ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
    ] {
        command.arg(flag(name, &cluster.pki(file)));
    }
    command.args(["--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true"]);
    // Also where a server that trusts the tokens looks for their keys.
    command.arg("--service-account-issuer=https://kubernetes.default.svc");
    command.arg("--service-account-jwks-uri=https://kubernetes.default.svc/openid/v1/jwks");
    command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
    command
}

fn controller_manager(cluster: &Cluster, program: &Path) -> Command {
    let mut command = component(cluster, program, "controller-manager");
    command.arg(flag("service-account-private-key-file", &cluster.pki("sa.key")));
    command.arg(flag("root-ca-file", &cluster.pki("ca.crt")));
    command.arg(flag("cluster-signing-cert-file", &cluster.pki("ca.crt")));
    command.arg(flag("cluster-signing-key-file", &cluster.pki("ca.key")));
    command.args([
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=false",
        "--leader-elect=false",
    ]);
    command.arg("--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins");
    // A claim and its pre-bound volume bind at the next sync, 15 s apart by default.
    command.arg("--pvclaimbinder-sync-period=1s");
    // The default (20 requests per second) would delay the service accounts of new namespaces.
    command.args(["--kube-api-qps=300", "--kube-api-burst=500", "--bind-address=127.0.0.1"]);
    command
}

/// A component that delegates authentication and authorization to the API server.
fn component(cluster: &Cluster, program: &Path, user: &str) -> Command {
    let kubeconfig = cluster.pki(&format!("{user}.kubeconfig"));
    let mut command = Command::new(program);
    for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(flag(name, &kubeconfig));
    }
    command
}

fn flag(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}
