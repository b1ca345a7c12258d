//! The files of an image: a program and what it needs to run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::capture;
use crate::cross::Cross;
use crate::debian::STATUS;

/// Where scanners look for packages in an image without a package manager: a file for each.
const PACKAGES: &str = "var/lib/dpkg/status.d";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Folder { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

/// Paths without a leading slash; sorted, so that the same files always give the same archive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(pub(crate) BTreeMap<String, Entry>);

impl Contents {
    /// Users, CA certificates and the directories that a runtime mounts on.
    pub(crate) fn system_files(&mut self) -> Result<()> {
        for folder in ["dev", "proc", "sys"] {
            self.folder(folder, 0o755);
        }
        self.folder("tmp", 0o1777);
        self.file(
            "etc/passwd",
            0o644,
            b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n".to_vec(),
        );
        // Scanners need it to know whose packages these are.
        self.file(
            "etc/os-release",
            0o644,
            fs::read("/etc/os-release").context("cannot read the system's name")?,
        );
        self.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n".to_vec());
        let bundle = "etc/ssl/certs/ca-certificates.crt";
        let content = fs::read(Path::new("/").join(bundle)).context("cannot read the CA certificates")?;
        self.file(bundle, 0o644, content);
        Ok(())
    }

    /// A program with its loader and shared libraries, each where the loader looks for it.
    pub(crate) fn program(&mut self, program: &Path, place: &str, cross: Option<&Cross>) -> Result<()> {
        self.copy(program, place)?;
        if let Some(cross) = cross {
            for library in cross.linked(program)? {
                self.copy(&library.file, &library.place)?;
                let (package, status) = library.package;
                self.file(&format!("{PACKAGES}/{package}"), 0o644, status.into_bytes());
            }
            return Ok(());
        }
        for library in linked(program)? {
            let place =
                library.strip_prefix("/").expect("ldd prints whole paths").to_string_lossy().into_owned();
            self.copy(&library, &place)?;
            self.package(&library)?;
        }
        Ok(())
    }

    /// Says of which Debian package a file is.
    fn package(&mut self, file: &Path) -> Result<()> {
        let package = package_of(file)?;
        let mut query = Command::new("dpkg-query");
        let status = capture(query.args(["--show", "--showformat", STATUS, &package]))?;
        let name = package.split(':').next().unwrap_or_default();
        self.file(&format!("{PACKAGES}/{name}"), 0o644, status.into_bytes());
        Ok(())
    }

    /// One program and a link for each of its commands.
    pub(crate) fn busybox(&mut self) -> Result<()> {
        let program = Path::new("/bin/busybox");
        // Static or dynamic, depending on the Debian package.
        self.program(program, "bin/busybox", None)?;
        for applet in capture(Command::new(program).arg("--list"))?.lines().filter(|name| *name != "busybox")
        {
            self.put(&format!("bin/{applet}"), Entry::Link { target: "busybox".to_owned() });
        }
        Ok(())
    }

    pub(crate) fn unpack(&self, folder: &Path) -> Result<()> {
        for (path, entry) in &self.0 {
            let path = folder.join(path);
            match entry {
                Entry::Folder { mode } => {
                    fs::create_dir_all(&path)?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
                }
                Entry::File { mode, content } => {
                    fs::write(&path, content)?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
                }
                Entry::Link { target } => symlink(target, &path)?,
            }
        }
        Ok(())
    }

    fn copy(&mut self, source: &Path, place: &str) -> Result<()> {
        let content = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.file(place, 0o755, content);
        Ok(())
    }

    fn file(&mut self, place: &str, mode: u32, content: Vec<u8>) {
        self.put(place, Entry::File { mode, content });
    }

    fn folder(&mut self, place: &str, mode: u32) {
        self.put(place, Entry::Folder { mode });
    }

    /// With all parent directories, because not every runtime creates them.
    fn put(&mut self, place: &str, entry: Entry) {
        for parent in Path::new(place).ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            let parent = parent.to_string_lossy().into_owned();
            self.0.entry(parent).or_insert(Entry::Folder { mode: 0o755 });
        }
        self.0.insert(place.to_owned(), entry);
    }
}

/// `NAME` or `NAME:ARCHITECTURE`. Debian moved its libraries below `/usr`; dpkg knows some of them by their old path.
fn package_of(file: &Path) -> Result<String> {
    let moved = Path::new("/usr").join(file.strip_prefix("/").unwrap_or(file));
    let owner = |file: &Path| capture(Command::new("dpkg-query").arg("--search").arg(file));
    let printed = owner(file).or_else(|_| owner(&moved));
    let printed = printed.with_context(|| format!("no Debian package has {}", file.display()))?;
    owner_of(&printed).with_context(|| format!("cannot understand dpkg-query: {}", printed.trim()))
}

/// In `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`.
fn owner_of(printed: &str) -> Option<String> {
    let lines = printed.lines().filter(|line| !line.starts_with("diversion by"));
    lines.filter_map(|line| line.split_once(": ")).map(|(package, _)| package.to_owned()).next()
}

fn linked(program: &Path) -> Result<Vec<PathBuf>> {
    match capture(Command::new("ldd").arg(program)) {
        Ok(printed) => libraries(&printed),
        Err(error) if format!("{error}").contains("not a dynamic executable") => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The files in `ldd`'s output: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`;
/// the kernel's `linux-vdso.so.1` is not a file.
fn libraries(printed: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in printed.lines() {
        if line.contains("not found") {
            bail!("a shared library is missing on this machine: {}", line.trim());
        }
        found.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_names_the_packages_of_its_libraries() {
        let mut contents = Contents::default();
        contents.program(&std::env::current_exe().unwrap(), "bin/test", None).unwrap();
        let place = format!("{PACKAGES}/libc6");
        let Some(Entry::File { content, .. }) = contents.0.get(&place) else {
            panic!("{:?}", contents.0.keys())
        };
        let said = String::from_utf8_lossy(content);
        assert!(said.starts_with("Package: libc6\nVersion: ") && said.contains("\nArchitecture: "), "{said}");
        assert_eq!(owner_of("diversion by a from: /b\nlibc6:amd64: /c\n").as_deref(), Some("libc6:amd64"));
        assert_eq!(owner_of("\n"), None);
    }

    #[test]
    fn the_loader_and_the_libraries_are_found() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(printed).unwrap(), expected);
        assert!(libraries("\tlibx.so.1 => not found\n").unwrap_err().to_string().contains("libx.so.1"));
    }
}
