//! Debian packages of another architecture or suite, fetched without a change to the machine's own package lists.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command::{capture, run};

/// Of all suites of Debian.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

pub(super) struct Apt {
    folder: PathBuf,
    /// Instead of the machine's.
    sources: Option<PathBuf>,
}

impl Apt {
    /// With the machine's own suite, or another one of the mirror that it uses.
    pub(super) fn new(folder: PathBuf, suite: Option<&str>) -> Result<Self> {
        let mut apt = Self { folder, sources: None };
        for place in ["archives/partial", "lists/partial"] {
            fs::create_dir_all(apt.folder.join(place))?;
        }
        run(apt.get().arg("update"))?;
        if let Some(suite) = suite {
            let format = ["indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)"];
            let printed = capture(apt.get().args(format))?;
            let mirror = mirror(&printed).context("apt has no source of Debian")?;
            let sources = apt.folder.join("sources.list");
            fs::write(&sources, format!("deb [signed-by={KEYS}] {mirror} {suite} main\n"))?;
            apt.sources = Some(sources);
            run(apt.get().arg("update"))?;
        }
        Ok(apt)
    }

    pub(super) fn download(&self, packages: impl IntoIterator<Item = String>) -> Result<()> {
        run(self.get().arg("download").args(packages))
    }

    pub(super) fn download_with_dependencies(&self, package: &str) -> Result<()> {
        run(self.get().args(["install", "--download-only", "--yes", "--no-install-recommends", package]))
    }

    /// The files of all that was downloaded.
    pub(super) fn packages(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(self.folder.join("archives"))?.map(|entry| Ok(entry?.path()));
        let files = files.collect::<Result<Vec<_>>>()?;
        Ok(files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "deb")).collect())
    }

    fn get(&self) -> Command {
        let folder = self.folder.display();
        let mut options = vec![
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::Cache={folder}"),
            // As if nothing was installed.
            "Dir::State::status=/dev/null".to_owned(),
            "APT::Architectures::=arm64".to_owned(),
            // Apt's own user cannot write into the cache.
            "APT::Sandbox::User=root".to_owned(),
            "Debug::NoLocking=1".to_owned(),
        ];
        if let Some(sources) = &self.sources {
            options.push(format!("Dir::Etc::SourceList={}", sources.display()));
            options.push("Dir::Etc::SourceParts=/dev/null".to_owned());
        }
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").args(options.iter().flat_map(|option| ["-o", option]));
        apt.current_dir(self.folder.join("archives"));
        apt
    }
}

/// In lines like `Debian bookworm URI`. Security updates have another server and another suite, with a dash.
fn mirror(printed: &str) -> Option<&str> {
    printed.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["Debian", suite, mirror] if !suite.contains('-') => Some(mirror),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_suites_come_from_the_mirror_of_the_machine() {
        let printed = "Debian stable-security http://a/\nOther stable http://b/\nDebian stable http://c/\n";
        assert_eq!(mirror(printed), Some("http://c/"));
        assert_eq!(mirror("Other stable http://b/\n"), None);
    }
}
