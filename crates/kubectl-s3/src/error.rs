//! Why the plugin itself cannot do its work.

use std::io;
use std::path::PathBuf;

use kube::config::KubeconfigError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum PluginError {
    #[error("cannot use the kubeconfig: {0}; correct it, or name another with --kubeconfig or --context")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("cannot connect to the cluster: {0}")]
    Client(#[source] kube::Error),
    #[error(
        "pod {namespace}/{name} not found; list the pods that have volumes of this driver: kubectl s3 mounts -A"
    )]
    NoPod { namespace: String, name: String },
    #[error("cannot read {what}: {error}")]
    Read { what: &'static str, error: String },
    #[error("cannot write {path}: {error}")]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot read the metrics of the node service: {0}")]
    NodeService(#[source] io::Error),
    #[error("cannot print: {0}")]
    Print(#[source] io::Error),
}
