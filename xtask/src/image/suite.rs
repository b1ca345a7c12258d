//! Images that Kubernetes' own test suite names, made of what is here.

use std::path::PathBuf;

use anyhow::Result;

use super::archive::Image;
use super::archive_path;
use super::contents::Contents;
use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::programs::Programs;

/// Writes the images among `references` that storage specs run, and returns their archives.
pub fn build(cache: &Cache, programs: &Programs, references: &[String]) -> Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for reference in references {
        let (name, tag) = name_and_tag(reference);
        let Some((contents, command)) = contents(name, programs)? else { continue };
        let archive = archive_path(&cache.images(), &format!("suite-{name}-{tag}"));
        let architecture = Architecture::of_this_machine()?;
        // Most specs run as root in the original images, too.
        Image { reference: reference.clone(), architecture, contents, command, user: "0:0" }
            .write(&archive)?;
        archives.push(archive);
    }
    Ok(archives)
}

/// Specs use a shell and `dd` of all images but `agnhost` and the populator, so busybox serves as each of them.
fn contents(name: &str, programs: &Programs) -> Result<Option<(Contents, &'static [&'static str])>> {
    let mut contents = Contents::default();
    contents.system_files()?;
    let command: &[&str] = match name {
        "agnhost" => {
            // With `nsenter`, for specs that look at the node.
            contents.busybox()?;
            contents.program(&programs.node("agnhost"), "agnhost", None)?;
            &["/agnhost"]
        }
        "busybox" | "glibc-dns-testing" | "jessie-dnsutils" | "nginx" => {
            contents.busybox()?;
            &["/bin/sh"]
        }
        "hello-populator" => {
            contents.program(&programs.node("hello-populator"), "hello-populator", None)?;
            &["/hello-populator"]
        }
        _ => return Ok(None),
    };
    Ok(Some((contents, command)))
}

/// `registry.example/e2e-test-images/agnhost:2.63.0` → `agnhost` and `2.63.0`
fn name_and_tag(reference: &str) -> (&str, &str) {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    last.split_once(':').unwrap_or((last, "latest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        assert_eq!(name_and_tag("registry.example/e2e-test-images/agnhost:2.63.0"), ("agnhost", "2.63.0"));
        assert_eq!(name_and_tag("busybox"), ("busybox", "latest"));
    }
}
