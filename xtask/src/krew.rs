//! The kubectl plugin for krew, kubectl's package manager: an archive for each architecture, and the manifest by which krew
//! installs them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::architecture::Architecture;
use crate::cache::{Cache, checkout};
use crate::cargo;
use crate::command::run;

use crate::image::digest;

/// What precedes the architecture in the name of an archive, and what follows it.
const NAME: (&str, &str) = ("kubectl-s3-linux-", ".tar.gz");

/// Builds the plugin and writes it, with the licence, into a folder. The same program gives the same archive.
pub fn archive(cache: &Cache, folder: &Path) -> Result<PathBuf> {
    let plugin = cargo::plugin(cache)?;
    let archive = folder.join(format!("{}{}{}", NAME.0, Architecture::of_this_machine()?.name(), NAME.1));
    write(&plugin, &archive)?;
    Ok(archive)
}

fn write(plugin: &Path, archive: &Path) -> Result<()> {
    let contents = tempfile::tempdir()?;
    fs::copy(plugin, contents.path().join("kubectl-s3")).with_context(|| plugin.display().to_string())?;
    fs::copy(checkout().join("LICENSE"), contents.path().join("LICENSE"))?;
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--gzip",
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    run(tar
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(contents.path())
        .args(["LICENSE", "kubectl-s3"]))
}

/// The manifest for these archives, which can be fetched below `url`, a folder of the project's releases.
pub fn manifest(url: &str, archives: &[PathBuf]) -> Result<String> {
    let homepage = url.split_once("/releases/").map_or(url, |(project, _)| project);
    let mut text = format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: s3
spec:
  version: v{}
  homepage: {homepage}
  shortDescription: Show why pods wait for their S3 buckets
  description: |
    For clusters with the CSI driver s3.csi.scality.com. `kubectl s3 why POD` finds what a pod with an S3 volume
    waits for, `mounts` and `top` show what is mounted and what mounts do, `doctor` checks the installation, and
    `support-bundle` collects logs and objects without keys. It reads with your own rights and changes nothing.
  platforms:
",
        env!("CARGO_PKG_VERSION")
    );
    for archive in archives {
        let name = archive.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let architecture = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
        let architecture =
            architecture.with_context(|| format!("{name} is not named {}ARCHITECTURE{}", NAME.0, NAME.1))?;
        let content = fs::read(archive).with_context(|| archive.display().to_string())?;
        let sum = digest(&content).replace("sha256:", "");
        writeln!(
            text,
            "    - selector:
        matchLabels:
          os: linux
          arch: {architecture}
      uri: {url}/{name}
      sha256: {sum}
      bin: kubectl-s3
      files:
        - from: kubectl-s3
          to: .
        - from: LICENSE
          to: ."
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::capture;

    #[test]
    fn an_archive_has_the_plugin_and_the_licence_and_depends_on_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let plugin = folder.path().join("built");
        fs::write(&plugin, "program").unwrap();
        let [one, two] = ["one.tar.gz", "two.tar.gz"].map(|name| folder.path().join(name));
        write(&plugin, &one).unwrap();
        write(&plugin, &two).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(two).unwrap());
        let listed = capture(Command::new("tar").args(["--list", "--file"]).arg(one)).unwrap();
        assert_eq!(listed, "LICENSE\nkubectl-s3\n");
    }
}
