//! The programs of the node and of the tests, built from Go modules at pinned versions into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;
pub use crate::kubernetes::Kubernetes;
use crate::process::listen;
use crate::progress::{Meter, metered, step};

/// (program, Go package) of the wrapper module.
type Program = (&'static str, &'static str);

const NODE: &[Program] = &[
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// Kubernetes' own test suite: what runs in its pods, fills its volumes and runs its specs.
const SUITE: &[Program] = &[
    ("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
    ("hello-populator", "github.com/kubernetes-csi/lib-volume-populator/example/hello-populator"),
    ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
];
/// The specs, which only `go test` can compile.
const SPECS: Program = ("e2e.test", "k8s.io/kubernetes/test/e2e");

/// (program, Go package, version): a module for `go install`.
type Tool = (&'static str, &'static str, &'static str);

const VERSITYGW: Tool = ("versitygw", "github.com/versity/versitygw/cmd/versitygw", "1.8.0");
const HELM: Tool = ("helm", "helm.sh/helm/v4/cmd/helm", "4.3.1");
const CSI_SANITY: Tool = ("csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", "5.6.0");
const ACTIONLINT: Tool = ("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "1.7.12");
const TOOLS: &[Tool] = &[VERSITYGW, HELM, CSI_SANITY, ACTIONLINT];

/// Six minutes on two cores; the rest is for slower or busy machines and slow downloads.
const BUILD_WITHIN: Duration = Duration::from_hours(1);

/// What the programs are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Lints,
    /// Printing it needs no cluster.
    Chart,
    Cluster,
    Tests,
    Conformance,
}

impl Purpose {
    fn programs(self) -> Vec<Program> {
        match self {
            Self::Lints | Self::Chart => Vec::new(),
            Self::Cluster | Self::Tests => NODE.to_vec(),
            Self::Conformance => [NODE, SUITE, &[SPECS]].concat(),
        }
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Self::Lints => &[ACTIONLINT],
            Self::Chart => &[HELM],
            Self::Cluster | Self::Conformance => &[VERSITYGW, HELM],
            Self::Tests => TOOLS,
        }
    }
}

/// The paths of the programs, which [`Programs::ensure`] builds.
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

    /// Whether all programs are built.
    pub fn are_built(cache: &Cache, kubernetes: Kubernetes, purpose: Purpose) -> Result<bool> {
        let programs = Self::of(cache, kubernetes)?;
        let node = purpose.programs().iter().all(|(name, _)| programs.node(name).exists());
        Ok(node && purpose.tools().iter().all(|tool| programs.tool(tool.0).exists()))
    }

    /// Builds missing programs. Go's own caches let an interrupted build continue where it stopped.
    pub fn ensure(cache: &Cache, kubernetes: Kubernetes, purpose: Purpose) -> Result<()> {
        let programs = Self::of(cache, kubernetes)?;
        let mut missing = purpose.programs();
        missing.retain(|(name, _)| !programs.node(name).exists());
        let (specs, missing): (Vec<_>, Vec<_>) = missing.into_iter().partition(|program| *program == SPECS);
        let tools: Vec<_> = purpose.tools().iter().filter(|tool| !programs.tool(tool.0).exists()).collect();
        if !missing.is_empty() {
            metered(&format!("compiling Kubernetes {}", programs.version), "packages", |meter| {
                programs.build_node(cache, &missing, meter)
            })?;
        }
        if !specs.is_empty() {
            step(&format!("compiling the test suite of Kubernetes {}", programs.version), || {
                programs.build_specs(cache)
            })?;
        }
        for tool in tools {
            metered(&format!("compiling {} {}", tool.0, tool.2), "packages", |meter| {
                programs.install(cache, tool, meter)
            })?;
        }
        Ok(())
    }

    /// With one command, so that both cores are busy while a program is linked.
    fn build_node(&self, cache: &Cache, programs: &[Program], meter: &Meter) -> Result<()> {
        let module = self.kubernetes.module();
        let packages = || programs.iter().map(|(_, package)| package);
        let mut list = go(cache, "list");
        list.current_dir(&module).arg("-deps").args(packages());
        meter.expect(listen(&mut list, BUILD_WITHIN, |line| meter.doing(line))?.lines().count());
        let partial = partial(&self.node(""))?;
        let mut build = go(cache, "build");
        build.current_dir(&module).args(["-v", "-trimpath", "-ldflags", &self.stamp(), "-o"]);
        listen(build.arg(&partial).args(packages()), BUILD_WITHIN, |line| count(meter, line))?;
        for (name, package) in programs {
            fs::rename(partial.join(executable(package)), self.node(name))?;
        }
        Ok(())
    }

    /// Without a meter, because `go test` does not tell which packages it compiles, and without the vet of each of them.
    fn build_specs(&self, cache: &Cache) -> Result<()> {
        let (name, package) = SPECS;
        let partial = partial(&self.node(""))?.join(name);
        let mut build = go(cache, "test");
        build.current_dir(self.kubernetes.module());
        build
            .args(["-c", "-vet=off", "-trimpath", "-ldflags", &self.stamp(), "-o"])
            .arg(&partial)
            .arg(package);
        listen(&mut build, BUILD_WITHIN, |_| {})?;
        Ok(fs::rename(partial, self.node(name))?)
    }

    fn install(&self, cache: &Cache, (name, package, version): &Tool, meter: &Meter) -> Result<()> {
        let goal = self.tool(name);
        let partial = partial(goal.parent().expect("a program is in a folder"))?;
        let mut install = go(cache, "install");
        install.env("GOBIN", &partial).args(["-v", "-trimpath", "-ldflags", "-s -w"]);
        listen(install.arg(format!("{package}@v{version}")), BUILD_WITHIN, |line| count(meter, line))?;
        Ok(fs::rename(partial.join(name), goal)?)
    }

    /// The exact version of Kubernetes.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// One of etcd and the programs of Kubernetes.
    pub fn node(&self, name: &str) -> PathBuf {
        self.root.join(format!("kubernetes-{}", self.version)).join(name)
    }

    /// actionlint, csi-sanity, helm or versitygw.
    pub fn tool(&self, name: &str) -> PathBuf {
        let version = TOOLS.iter().find(|tool| tool.0 == name).map_or("unknown", |tool| tool.2);
        self.root.join(format!("{name}-{version}")).join(name)
    }

    /// Without it, every component reports v0.0.0-master, which misleads clients that check the server's version.
    fn stamp(&self) -> String {
        let package = "k8s.io/component-base/version";
        format!(
            "-s -w -X {package}.gitVersion=v{} -X {package}.gitMajor=1 -X {package}.gitMinor={}",
            self.version,
            self.kubernetes.minor()
        )
    }
}

/// Where the programs of this folder are built before they are moved into place.
fn partial(folder: &Path) -> Result<PathBuf> {
    let partial = folder.join("partial");
    fs::create_dir_all(&partial)?;
    Ok(partial)
}

/// The program name that `go build` gives a package: the last part of its path that is not a version.
fn executable(package: &str) -> &str {
    let is_version = |part: &str| part.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package)
}

/// With `-v`, Go prints each package that it compiles and each module that it fetches.
fn count(meter: &Meter, line: &str) {
    if line.starts_with("go: ") { meter.doing(line) } else { meter.advance(line) }
}

pub(crate) fn go(cache: &Cache, verb: &str) -> Command {
    let mut go = Command::new("go");
    go.arg(verb).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    // Compilers are short-lived: collecting garbage less often takes memory instead of processor time.
    go.env("GOGC", "400");
    go.env("GOCACHE", cache.go().join("build")).env("GOMODCACHE", cache.go().join("modules"));
    go
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has no Helm should not compile Kubernetes for it.
    #[test]
    fn the_chart_is_printed_without_programs_of_a_cluster() {
        assert_eq!((Purpose::Chart.programs(), Purpose::Chart.tools()), (Vec::new(), [HELM].as_slice()));
    }

    #[test]
    fn go_names_programs_by_their_packages() {
        for (name, package) in NODE {
            let expected = if *name == "etcd" { "server" } else { name };
            assert_eq!(executable(package), expected);
        }
    }
}
