//! The programs of the node and of the tests, built from Go modules at pinned versions into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, checkout};
use crate::command::run;
use crate::debian;
use crate::progress::step;

/// The Kubernetes releases the node can be made of: the newest, and the one the figures to beat were measured on.
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
    fn minor(self) -> u32 {
        match self {
            Self::V1_36 => 36,
            Self::V1_34 => 34,
        }
    }

    fn module(self) -> PathBuf {
        checkout().join(format!("xtask/go/kubernetes-{self}"))
    }

    /// The exact version, which only the module file knows.
    fn version(self) -> Result<String> {
        let module = fs::read_to_string(self.module().join("go.mod"))?;
        let version = module.split_whitespace().skip_while(|word| *word != "k8s.io/kubernetes").nth(1);
        Ok(version
            .and_then(|word| word.strip_prefix('v'))
            .context("go.mod requires k8s.io/kubernetes")?
            .to_owned())
    }
}

/// (program, Go package) of the wrapper module.
const NODE: &[(&str, &str)] = &[
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// (program, Go package, version), each a module that `go install` takes as it is.
const TOOLS: &[(&str, &str, &str)] = &[
    ("versitygw", "github.com/versity/versitygw/cmd/versitygw", "1.8.0"),
    ("helm", "helm.sh/helm/v4/cmd/helm", "4.3.1"),
    ("csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", "5.6.0"),
];
/// Where each program is, once [`Programs::ensure`] has made it.
#[derive(Clone, Debug)]
pub struct Programs {
    root: PathBuf,
    kubernetes: Kubernetes,
    version: String,
}

impl Programs {
    /// The programs of this release, whether they have been built or not.
    pub fn of(cache: &Cache, kubernetes: Kubernetes) -> Result<Self> {
        Ok(Self { root: cache.programs(), kubernetes, version: kubernetes.version()? })
    }

    /// Builds what is not there yet. Go's own caches make an interrupted build go on where it stopped.
    pub fn ensure(cache: &Cache, kubernetes: Kubernetes) -> Result<Self> {
        let programs = Self::of(cache, kubernetes)?;
        if NODE.iter().all(|(name, _)| programs.node(name).exists())
            && TOOLS.iter().all(|(name, ..)| programs.tool(name).exists())
        {
            return Ok(programs);
        }
        debian::ensure_go()?;
        for (name, package) in NODE {
            build(&programs.node(name), |output| {
                let mut go = go(cache, "build");
                go.current_dir(kubernetes.module()).arg("-ldflags").arg(programs.stamp());
                go.arg("-o").arg(output).arg(package);
                go
            })?;
        }
        for tool in TOOLS {
            programs.install(cache, tool)?;
        }
        Ok(programs)
    }

    fn install(&self, cache: &Cache, (name, package, version): &(&str, &str, &str)) -> Result<()> {
        build(&self.tool(name), |output| {
            let mut go = go(cache, "install");
            go.env("GOBIN", output.parent().expect("the partial file is in a folder"));
            go.args(["-ldflags", "-s -w"]).arg(format!("{package}@v{version}"));
            go
        })
    }

    /// One of etcd and the programs of Kubernetes.
    pub fn node(&self, name: &str) -> PathBuf {
        self.root.join(format!("kubernetes-{}", self.version)).join(name)
    }

    /// helm, csi-sanity or versitygw.
    pub fn tool(&self, name: &str) -> PathBuf {
        let version = TOOLS.iter().find(|tool| tool.0 == name).map_or("unknown", |tool| tool.2);
        self.root.join(format!("{name}-{version}")).join(name)
    }

    /// Without it every component calls itself v0.0.0-master, and clients that look at the server's version go astray.
    fn stamp(&self) -> String {
        let package = "k8s.io/component-base/version";
        format!(
            "-s -w -X {package}.gitVersion=v{} -X {package}.gitMajor=1 -X {package}.gitMinor={}",
            self.version,
            self.kubernetes.minor()
        )
    }
}

/// Lets `command` write into a folder beside the goal and moves the finished program into place: what exists is whole.
fn build(goal: &Path, command: impl FnOnce(&Path) -> Command) -> Result<()> {
    if goal.exists() {
        return Ok(());
    }
    let folder = goal.parent().expect("a program is in a folder");
    let label = folder.file_name().unwrap_or_default().to_string_lossy();
    let name = goal.file_name().expect("a program has a name");
    step(&format!("building {} ({label})", name.to_string_lossy()), || {
        let partial = folder.join("partial").join(name);
        fs::create_dir_all(folder.join("partial"))?;
        run(&mut command(&partial))?;
        Ok(fs::rename(partial, goal)?)
    })
}

fn go(cache: &Cache, verb: &str) -> Command {
    let mut go = Command::new("go");
    go.args([verb, "-trimpath"]).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    go.env("GOCACHE", cache.go().join("build")).env("GOMODCACHE", cache.go().join("modules"));
    go
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_files_name_the_releases_they_are_filed_under() {
        for kubernetes in [Kubernetes::V1_36, Kubernetes::V1_34] {
            let version = kubernetes.version().unwrap();
            assert!(version.starts_with(&format!("1.{}.", kubernetes.minor())), "{version}");
        }
    }
}
