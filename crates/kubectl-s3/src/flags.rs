//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Answers questions about volumes of the S3 CSI driver. Exit code: 0 if nothing is wrong, 1 if something is, 2 if that could not be
/// determined.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-s3", bin_name = "kubectl s3", version)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// How to print what was found.
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Format,
}

#[derive(Clone, Debug, Default, Args)]
pub struct ClusterFlags {
    /// Namespace to look at; that of the context if absent.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; the current one if absent.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Kubeconfig to use; as kubectl finds it if absent.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Say why a pod does not have its volumes, and what helps.
    Why {
        /// Name of the pod, or `pod/NAME`.
        pod: String,
    },
    /// List mounts: workload, volume, bucket, node, Mountpoint Pod, state.
    Mounts {
        /// Of all namespaces.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Show what each mount does at the moment: requests, errors, latency, bytes, cache, uploads, waiting requests.
    Top {
        /// Of all namespaces.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Seconds to watch.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
        seconds: u64,
    },
    /// Check the installation, its volumes and, from inside the driver's pods, its S3 endpoint.
    Doctor {
        #[command(flatten)]
        inside: InsideFlags,
    },
    /// Write logs, events, objects, mount tables and versions into a tar archive, without secrets.
    SupportBundle {
        /// The archive to write; `s3-csi-support-TIME.tar` in the working folder if absent.
        #[arg(short, long)]
        file: Option<PathBuf>,
        /// Pods whose logs are packed, at most: of controllers first, then of pods that are not ready.
        #[arg(long, default_value_t = 100)]
        most_pods: usize,
        #[command(flatten)]
        inside: InsideFlags,
    },
    /// What `top` runs inside the node services' containers: reports on the mounts of this node as JSON.
    #[command(hide = true)]
    SelfTop {
        /// Seconds to watch.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// What `doctor` runs inside the driver's containers: reports on this container as JSON.
    #[command(hide = true)]
    SelfCheck {
        /// Buckets to list one object of with the driver's keys.
        #[arg(long = "bucket")]
        buckets: Vec<String>,
        /// Trust the certificate authorities on standard input instead of the system's.
        #[arg(long)]
        authorities_from_stdin: bool,
    },
}

#[derive(Clone, Debug, Args)]
pub struct InsideFlags {
    /// Run nothing inside the driver's pods: neither endpoint nor mount tables are looked at.
    #[arg(long)]
    pub no_exec: bool,
    /// How many nodes are looked at from inside, at most.
    #[arg(long, default_value_t = 10)]
    pub most_nodes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn flags_of_the_cluster_may_follow_the_command() {
        let flags = Flags::parse_from(["kubectl-s3", "why", "web", "-n", "shop", "-o", "json"]);
        assert_eq!(flags.cluster.namespace.as_deref(), Some("shop"));
        assert_eq!(flags.output, Format::Json);
        assert!(matches!(flags.command, Command::Why { pod } if pod == "web"));
    }
}
