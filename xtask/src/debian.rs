//! Requirements of the machine: Debian packages and the two toolchains.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{capture, on_path, run};
use crate::progress::step;

/// (package, a program or file that it provides, what it is for)
type Package = (&'static str, &'static str, &'static str);

const PACKAGES: &[Package] = &[
    ("busybox-static", "/bin/busybox", "shell of the test image, pause process of pods"),
    ("ca-certificates", "/etc/ssl/certs/ca-certificates.crt", "trusted authorities of the images"),
    ("cmake", "cmake", "builds the C libraries of the mount process"),
    ("conntrack", "conntrack", "kube-proxy"),
    ("containerd", "containerd", "runs the node's containers"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge", "the pods' network"),
    ("dnsmasq-base", "dnsmasq", "names in the node's network"),
    ("g++", "g++", "builds the C libraries of the mount process"),
    ("git", "git", "writes files on mounts in tests"),
    ("iproute2", "ip", "the node's network"),
    ("iptables", "iptables", "kube-proxy"),
    ("libclang-dev", "/usr/share/doc/libclang-dev", "builds the C libraries of the mount process"),
    ("libfuse3-dev", "/usr/include/fuse3/fuse.h", "the mount process"),
    ("make", "make", "builds the C libraries of the mount process"),
    ("pkg-config", "pkg-config", "finds the libraries of the mount process"),
    ("python3", "python3", "writes files on mounts in tests"),
    ("rsync", "rsync", "writes files on mounts in tests"),
    ("runc", "runc", "runs the node's containers"),
    ("socat", "socat", "kubectl port-forward"),
    ("sqlite3", "sqlite3", "writes files on mounts in tests"),
    ("util-linux", "nsenter", "enters the node's namespaces"),
];

/// Of the tests alone.
const OF_TESTS: &[Package] = &[
    ("default-jre-headless", "java", "writes files on mounts in tests"),
    ("prometheus", "promtool", "tests the alerts"),
];

/// To compile for arm64 on amd64, and to try what was compiled.
const OF_CROSS: &[Package] = &[
    ("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++", "compiles and links for arm64"),
    ("qemu-user-static", "/usr/bin/qemu-aarch64-static", "runs programs for arm64"),
];

/// What an image says of a package. Backslashes and variables are those of dpkg-query and dpkg-deb.
pub(crate) const STATUS: &str =
    r"Package: ${Package}\nVersion: ${Version}\nArchitecture: ${Architecture}\nSource: ${source:Package}\n";

/// Required by the go.mod of Kubernetes 1.36.
const GO: (u32, u32) = (1, 26);

/// Installs missing packages in one call. Without root or apt-get, fails and names them.
pub fn ensure_packages() -> Result<()> {
    ensure(PACKAGES.iter().collect())
}

/// The same, and what only tests need.
pub fn ensure_test_packages() -> Result<()> {
    ensure(PACKAGES.iter().chain(OF_TESTS).collect())
}

/// The same, and what compiles for another architecture.
pub fn ensure_cross_packages() -> Result<()> {
    ensure(PACKAGES.iter().chain(OF_CROSS).collect())
}

fn ensure(packages: Vec<&Package>) -> Result<()> {
    let missing: Vec<&Package> = packages.into_iter().filter(|(_, file, _)| !present(file)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || !on_path("apt-get") {
        let list: Vec<String> = missing
            .iter()
            .map(|(name, file, purpose)| format!("  {name} (provides {file}: {purpose})"))
            .collect();
        bail!(
            "required programs are missing, and only root on Debian can install them automatically; install:\n{}",
            list.join("\n")
        );
    }
    let names: Vec<&str> = missing.iter().map(|(name, ..)| *name).collect();
    step(&format!("installing Debian packages: {}", names.join(" ")), || {
        let apt = |arguments: &[&str]| {
            run(Command::new("apt-get")
                .env("DEBIAN_FRONTEND", "noninteractive")
                .args(["-qq"])
                .args(arguments))
        };
        let mut install = vec!["install", "--yes", "--no-install-recommends"];
        install.extend(&names);
        // On a new machine the package lists may be missing or outdated. They are fetched only after a first failure.
        apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
    })
}

/// Puts the files of a package into a folder, without installing it.
pub(crate) fn extract(package: &Path, folder: &Path) -> Result<()> {
    run(Command::new("dpkg-deb").arg("--extract").args([package, folder]))
}

/// The node needs its own namespaces, mounts and cgroups.
pub fn ensure_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("not running as root: a Kubernetes node needs root; run this command as root");
    }
    Ok(())
}

pub fn ensure_go() -> Result<()> {
    let wanted = format!("Go {}.{} or newer is needed to build Kubernetes and its tools", GO.0, GO.1);
    let printed = capture(Command::new("go").arg("version")).with_context(|| wanted.clone())?;
    match go_version(&printed) {
        Some(found) if found >= GO => Ok(()),
        _ => bail!("{wanted}, but `go version` printed: {}", printed.trim()),
    }
}

/// `go version go1.26.8 linux/amd64` → (1, 26)
fn go_version(printed: &str) -> Option<(u32, u32)> {
    let version = printed
        .split_whitespace()
        .find_map(|word| word.strip_prefix("go").filter(|rest| !rest.is_empty()))?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn present(file: &str) -> bool {
    if file.starts_with('/') { Path::new(file).exists() } else { on_path(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_read_as_numbers() {
        assert_eq!(go_version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(go_version("go version go1.27rc1 linux/amd64"), Some((1, 27)));
        assert_eq!(go_version("go version devel"), None);
        assert!((1, 9) < GO, "a comparison as text would put 1.9 above 1.26");
    }
}
