//! The Kubernetes releases that are supported and tested.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cache::checkout;

/// The supported Kubernetes releases: the newest, and the one that the reference figures were measured on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Kubernetes {
    #[default]
    #[value(name = "1.36")]
    V1_36,
    #[value(name = "1.34")]
    V1_34,
}

impl std::fmt::Display for Kubernetes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "1.{}", self.minor())
    }
}

impl Kubernetes {
    /// Newest first. The chart refuses what is older than the last.
    pub const ALL: [Self; 2] = [Self::V1_36, Self::V1_34];

    pub(crate) fn minor(self) -> u32 {
        match self {
            Self::V1_36 => 36,
            Self::V1_34 => 34,
        }
    }

    /// Whether the kubelet's backoff between restarts of a container can be limited (`KubeletCrashLoopBackOffMax`).
    pub(crate) fn limits_restart_backoff(self) -> bool {
        self.minor() >= 35
    }

    pub(crate) fn module(self) -> PathBuf {
        checkout().join(format!("xtask/go/kubernetes-{self}"))
    }

    /// The exact version, from the module file.
    pub(crate) fn version(self) -> Result<String> {
        let module = fs::read_to_string(self.module().join("go.mod"))?;
        let version = module.split_whitespace().skip_while(|word| *word != "k8s.io/kubernetes").nth(1);
        Ok(version
            .and_then(|word| word.strip_prefix('v'))
            .context("go.mod requires k8s.io/kubernetes")?
            .to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_files_name_the_releases_they_are_filed_under() {
        for kubernetes in Kubernetes::ALL {
            let version = kubernetes.version().unwrap();
            assert!(version.starts_with(&format!("1.{}.", kubernetes.minor())), "{version}");
        }
        assert_eq!(Kubernetes::ALL, Kubernetes::value_variants());
        assert!(Kubernetes::ALL.is_sorted_by_key(|release| std::cmp::Reverse(release.minor())));
    }

    /// A release on which no suite runs may not be able to do what the driver relies on.
    #[test]
    fn the_chart_refuses_releases_older_than_the_tested_ones() {
        let [.., oldest] = Kubernetes::ALL;
        for (file, words) in [
            ("charts/s3-csi/Chart.yaml", format!("kubeVersion: \">={oldest}.0-0\"")),
            ("docs/installation.md", format!("* Kubernetes {oldest} or newer")),
            ("docs/troubleshooting.md", format!("requires kubeVersion: >={oldest}.0-0")),
        ] {
            let text = fs::read_to_string(checkout().join(file)).unwrap();
            assert!(text.contains(&words), "{file} does not say `{words}`");
        }
    }
}
