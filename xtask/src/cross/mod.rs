//! What compiles programs for arm64 on amd64. Debian has the linker and an emulator. Shared libraries of the other architecture, and
//! a compiler with a standard library for it where rustup has none, are unpacked below the cache.

mod apt;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::architecture::Architecture;
use crate::cache::{Cache, checkout};
use crate::command::capture;
use crate::debian;
use crate::progress::step;
use apt::Apt;

/// Debian packages that the programs are linked with.
const LIBRARIES: &[&str] = &["libc6", "libfuse3-3", "libgcc-s1"];
/// Says which package the other files in its folder are of.
const STATUS: &str = "status";
/// Has Rust's latest release. A standard library can be used only with the compiler that built it.
const SUITE_OF_RUST: &str = "sid";
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
/// In the names of the linker and of folders with libraries.
const GNU: &str = "aarch64-linux-gnu";
/// Runs a program of the other architecture.
pub const EMULATOR: &str = "/usr/bin/qemu-aarch64-static";

/// Debian's package with `libfuse3.so` and `fuse3.pc` depends on the library in the machine's own folders.
const FUSE: &str = "Name: fuse3\nDescription: FUSE\nVersion: 3.0.0\nLibs: -L${pcfiledir} -lfuse3\n";

/// Debian's compiler with its own loader and libraries, which are newer than those of the machine.
const RUSTC: &str = r#"#!/bin/sh
root="${0%/*}"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" \
  "$root/usr/bin/rustc" --sysroot "$root/usr" "$@"
"#;

#[derive(Clone, Debug)]
pub struct Cross {
    root: PathBuf,
    /// If rustup's cannot be used.
    rustc: Option<PathBuf>,
}

/// A shared library, or the loader.
pub(crate) struct Library {
    pub(crate) file: PathBuf,
    /// Where the loader looks for it, without the leading slash.
    pub(crate) place: String,
    /// Name and description of the Debian package.
    pub(crate) package: (String, String),
}

impl Cross {
    /// Fetches what is missing.
    pub fn ensure(cache: &Cache, architecture: Architecture) -> Result<Self> {
        let machine = Architecture::of_this_machine()?;
        if (machine, architecture) != (Architecture::Amd64, Architecture::Arm64) {
            bail!("cannot compile for {} on {}", architecture.name(), machine.name());
        }
        debian::ensure_cross_packages()?;
        let mut cross = Self { root: cache.root().join(architecture.name()), rustc: None };
        fs::create_dir_all(&cross.root)?;
        if !cross.libraries().exists() {
            step("libraries of arm64", || cross.fetch_libraries())?;
        }
        if !has_standard_library()? {
            let rust = cross.root.join("rust");
            if !rust.exists() {
                step("a compiler for arm64", || cross.fetch_rust(&rust))?;
            }
            cross.rustc = Some(rust.join("rustc"));
        }
        Ok(cross)
    }

    /// For Cargo and for the build scripts that it runs.
    pub(crate) fn configure(&self, cargo: &mut Command) {
        cargo.args(["--target", TARGET]);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", format!("{GNU}-gcc"));
        cargo.env("PKG_CONFIG_ALLOW_CROSS", "1");
        cargo.env("PKG_CONFIG_LIBDIR_aarch64_unknown_linux_gnu", self.libraries());
        if let Some(rustc) = &self.rustc {
            cargo.env("RUSTC", rustc);
        }
    }

    /// The loader and the shared libraries of a program, as `ldd` finds them for one of the machine's own architecture.
    pub(crate) fn linked(&self, program: &Path) -> Result<Vec<Library>> {
        let places = LIBRARIES.iter().map(|package| self.libraries().join(package).join("lib").join(GNU));
        let mut list = Command::new(EMULATOR);
        list.arg(self.libraries().join("libc6/lib/ld-linux-aarch64.so.1"));
        list.arg("--library-path").arg(std::env::join_paths(places)?).arg("--list").arg(program);
        let libraries = self.libraries();
        capture(&mut list)?.lines().filter_map(|line| library(line, &libraries).transpose()).collect()
    }

    fn libraries(&self) -> PathBuf {
        self.root.join("libraries")
    }

    /// Of the machine's own release, as are the libraries of this architecture.
    fn fetch_libraries(&self) -> Result<()> {
        let work = tempfile::tempdir_in(&self.root)?;
        let (apt, unpacked) = (Apt::new(work.path().join("apt"), None)?, work.path().join("unpacked"));
        apt.download(LIBRARIES.iter().map(|name| format!("{name}:arm64")))?;
        fs::create_dir(&unpacked)?;
        for package in apt.packages()? {
            let format = ["--show", "--showformat", debian::STATUS];
            let status = capture(Command::new("dpkg-deb").args(format).arg(&package))?;
            let name = status.lines().find_map(|line| line.strip_prefix("Package: "));
            let folder = unpacked.join(name.context("a package has no name")?);
            debian::extract(&package, &folder)?;
            fs::write(folder.join(STATUS), &status)?;
        }
        symlink(format!("libfuse3-3/lib/{GNU}/libfuse3.so.3"), unpacked.join("libfuse3.so"))?;
        fs::write(unpacked.join("fuse3.pc"), FUSE)?;
        Ok(fs::rename(unpacked, self.libraries())?)
    }

    fn fetch_rust(&self, folder: &Path) -> Result<()> {
        let work = tempfile::tempdir_in(&self.root)?;
        let unpacked = work.path().join("unpacked");
        let apt = Apt::new(work.path().join("apt"), Some(SUITE_OF_RUST))?;
        apt.download_with_dependencies("libstd-rust-dev")?;
        apt.download(["libstd-rust-dev:arm64", "rustc"].map(str::to_owned))?;
        apt.packages()?.iter().try_for_each(|package| debian::extract(package, &unpacked))?;
        let rustc = unpacked.join("rustc");
        fs::write(&rustc, RUSTC)?;
        fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(unpacked, folder)?)
    }
}

/// Whether the compiler of the checkout can be used. rustup has a folder for each target that was added.
fn has_standard_library() -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(checkout());
    Ok(Path::new(capture(&mut rustc)?.trim()).is_dir())
}

/// In a line such as `libc.so.6 => LIBRARIES/libc6/lib/aarch64-linux-gnu/libc.so.6 (0x…)`. The loader's has a path before the arrow,
/// too.
fn library(line: &str, libraries: &Path) -> Result<Option<Library>> {
    if line.contains("not found") {
        bail!("a shared library is in none of the packages {}: {}", LIBRARIES.join(", "), line.trim());
    }
    let Some(file) = line.split_whitespace().rfind(|word| word.starts_with('/')) else { return Ok(None) };
    let below = Path::new(file).strip_prefix(libraries);
    let mut parts = below.with_context(|| format!("{file} is not of arm64"))?.components();
    let name = parts.next().context("a library is in a package")?.as_os_str().to_string_lossy().into_owned();
    let status = fs::read_to_string(libraries.join(&name).join(STATUS))?;
    let place = parts.as_path().to_string_lossy().into_owned();
    Ok(Some(Library { file: file.into(), place, package: (name, status) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_where_the_loader_looks_for_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("libc6")).unwrap();
        fs::write(folder.path().join("libc6/status"), "Package: libc6\n").unwrap();
        let found =
            |line: &str| library(&line.replace("ROOT", folder.path().to_str().unwrap()), folder.path());
        let loader = found("\t/lib/ld-linux-aarch64.so.1 => ROOT/libc6/lib/ld-linux-aarch64.so.1 (0x1)");
        let loader = loader.unwrap().unwrap();
        assert_eq!(loader.place, "lib/ld-linux-aarch64.so.1");
        assert_eq!(loader.package, ("libc6".to_owned(), "Package: libc6\n".to_owned()));
        assert!(found("\tlinux-vdso.so.1 (0x1)").unwrap().is_none());
        for wrong in ["\tlibx.so.1 => not found", "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x1)"] {
            assert!(found(wrong).is_err(), "{wrong}");
        }
    }
}
