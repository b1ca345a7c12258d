//! Cargo's builds. Each kind of program is compiled by one command with one set of features, so that no dependency is compiled
//! twice: test programs, which are linted while they are compiled; release programs; and the tests of the mount process, in
//! the release profile, because its C libraries take minutes to build.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cache::{Cache, checkout};
use crate::cross::{self, Cross};
use crate::process::{Line, Process, tail};
use crate::progress::{Meter, metered, say};

/// Ten minutes on two cores; the rest is for slower or busy machines.
const BUILD_WITHIN: Duration = Duration::from_mins(90);

/// (package, program): what is shipped. The set of packages determines the features of shared dependencies.
pub const SHIPPED: &[(&str, &str)] = &[
    ("controller", "s3-csi-controller"),
    ("kubectl-s3", "kubectl-s3"),
    ("mounter", "s3-csi-mounter"),
    ("mountpoint", "s3-csi-mountpoint"),
    ("node", "s3-csi-node"),
];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    pub name: String,
    /// What it tests is a library or a program; otherwise it is a suite.
    pub is_unit: bool,
    pub path: PathBuf,
    /// Where Cargo would run it.
    pub package: PathBuf,
}

/// The result of a build, and the number of warnings about our own code.
#[derive(Debug, Default)]
pub struct Built {
    pub tests: Vec<TestProgram>,
    pub warnings: usize,
}

/// Cargo on this checkout, with its output in the cache.
pub fn cargo(cache: &Cache) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(checkout()).env("CARGO_TARGET_DIR", cache.target());
    // `cargo run` sets variables that name the package. Build scripts of dependencies read them, too, and would run again,
    // with everything that depends on them, whenever Cargo was last called without these variables.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
        command.env_remove(name);
    }
    command
}

/// The test programs of everything but the mount process, linted.
pub fn tests(cache: &Cache) -> Result<Built> {
    let mut command = cargo(cache);
    lint(&mut command).args(["test", "--no-run", "--locked", "--lib", "--bins", "--tests"]);
    build("compiling and linting tests", tested_set(&mut command))
}

/// The same for the mount process.
pub fn mountpoint_tests(cache: &Cache) -> Result<Built> {
    let mut command = cargo(cache);
    lint(release(cache, &mut command, "test")).args(["--no-run", "--bin", "s3-csi-mountpoint"]);
    build("compiling and linting the mount process's tests", shipped_set(&mut command))
}

/// Builds the programs of the images and returns their folder.
pub fn shipped(cache: &Cache) -> Result<PathBuf> {
    shipped_from(cache, checkout(), &cache.target())
}

/// The same from another checkout into another folder.
pub fn shipped_from(cache: &Cache, checkout: &Path, target: &Path) -> Result<PathBuf> {
    let mut command = cargo(cache);
    release(cache, &mut command, "build").current_dir(checkout).env("CARGO_TARGET_DIR", target);
    build("compiling release programs", shipped_programs(&mut command))?;
    Ok(target.join("release"))
}

/// The same for another architecture.
pub fn shipped_with(cache: &Cache, cross: &Cross) -> Result<PathBuf> {
    let mut command = cargo(cache);
    cross.configure(release(cache, &mut command, "build"));
    build("compiling release programs for arm64", shipped_programs(&mut command))?;
    Ok(cache.target().join(cross::TARGET).join("release"))
}

/// Controller, node and mounter of another version from a copy of the checkout, with the dependencies of the tests.
pub fn unoptimised_from(cache: &Cache, checkout: &Path) -> Result<PathBuf> {
    let mut command = cargo(cache);
    // Not `--locked`, because the lock file has our original version.
    command.args(["build", "--offline"]).current_dir(checkout);
    let programs = SHIPPED.iter().filter(|(package, _)| *package != "mountpoint");
    command.args(programs.flat_map(|(_, program)| ["--bin", program]));
    build("compiling another version", tested_set(&mut command))?;
    Ok(cache.target().join("debug"))
}

/// The kubectl plugin for people's own machines: without shared libraries, so that it runs on any Linux of its architecture.
pub fn plugin(cache: &Cache) -> Result<PathBuf> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo(cache);
    release(cache, &mut command, "build").args(["--package", "kubectl-s3", "--bin", "kubectl-s3"]);
    command.env(
        "CARGO_ENCODED_RUSTFLAGS",
        format!("{}\x1f-Ctarget-feature=+crt-static", remapped(&cargo_home())),
    );
    // With a target, Cargo compiles macros, which are always shared libraries, without that flag.
    build("compiling the plugin", command.args(["--target", &host]))?;
    Ok(cache.target().join(host).join("release/kubectl-s3"))
}

/// The program of the benchmarks; returns its folder.
pub fn benchmark(cache: &Cache) -> Result<PathBuf> {
    let mut command = cargo(cache);
    release(cache, &mut command, "build");
    command.args(["--package", "s3-csi-tests", "--bin", "measure", "--features", "real-parts"]);
    build("compiling the benchmark", &mut command)?;
    Ok(cache.target().join("release"))
}

fn tested_set(command: &mut Command) -> &mut Command {
    command.args(["--workspace", "--exclude", "mountpoint", "--features", "s3-csi-tests/real-parts"])
}

fn shipped_set(command: &mut Command) -> &mut Command {
    command.args(SHIPPED.iter().flat_map(|(package, _)| ["--package", package]))
}

fn shipped_programs(command: &mut Command) -> &mut Command {
    command.args(SHIPPED.iter().flat_map(|(_, program)| ["--bin", program]));
    shipped_set(command)
}

/// Compiles our own crates with clippy, which is the compiler with more lints. `cargo clippy` would check every dependency
/// once more.
fn lint(command: &mut Command) -> &mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// Makes builds reproducible, wherever Cargo keeps its sources and its output, to which the headers of the C libraries are
/// copied. The checkout's own path is not in the programs and must not be in the flags, because each clone would then
/// compile every crate again.
fn release<'a>(cache: &Cache, command: &'a mut Command, verb: &str) -> &'a mut Command {
    let home = cargo_home();
    command.env("CARGO_ENCODED_RUSTFLAGS", remapped(&home));
    let places = [(home, "/cargo"), (cache.target(), "/target")];
    let remap = places.map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display())).join(" ");
    command.env("CFLAGS", format!("{remap} {KERNELS_ENTROPY}")).env("CXXFLAGS", &remap);
    command.args([verb, "--release", "--locked"])
}

/// An option of AWS-LC, the cryptography of the mount process. By default it measures the processor's jitter for randomness
/// beside the kernel's, which took 27 of the 66 ms of processor time in which a mount process starts, and programs wait for one that
/// follows another that died.
const KERNELS_ENTROPY: &str = "-DDISABLE_CPU_JITTER_ENTROPY";

fn cargo_home() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default()
}

fn remapped(home: &Path) -> String {
    format!("--remap-path-prefix={}=/cargo", home.display())
}

/// Shows Cargo's progress and the compiler's messages about our code.
pub fn build(what: &str, command: &mut Command) -> Result<Built> {
    let format = if std::io::stderr().is_terminal() { "json-diagnostic-rendered-ansi" } else { "json" };
    command.args(["--message-format", format]).stderr(Stdio::piped());
    // Cargo shows its progress only on terminals, or on request; then it needs a width.
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "100");
    command.env("CARGO_TERM_COLOR", "never");
    metered(what, "crates", |meter| {
        let (mut built, mut errors) = (Built::default(), String::new());
        let mut cargo = Process::start(command)?;
        let ended = cargo.hear(BUILD_WITHIN, |line| match line {
            Line::Out(message) => built.read(&message),
            Line::Error(line) => match progress(&line) {
                Some(progress) => progress.show(meter),
                None => errors.extend([line.as_str(), "\n"]),
            },
        })?;
        match ended {
            Some(status) if status.success() => Ok(built),
            Some(status) => bail!("cargo: {status}\n{}", tail(&errors)),
            None => {
                cargo.kill();
                bail!("cargo timed out after {} min\n{}", BUILD_WITHIN.as_secs() / 60, tail(&errors))
            }
        }
    })
}

impl Built {
    /// One of Cargo's messages.
    fn read(&mut self, message: &str) {
        let Ok(message) = serde_json::from_str::<Value>(message) else { return };
        match message["reason"].as_str() {
            // Cargo passes on no messages about dependencies.
            Some("compiler-message") => {
                say(message["message"]["rendered"].as_str().unwrap_or_default());
                self.warnings += 1;
            }
            Some("compiler-artifact") => self.tests.extend(test_program(&message)),
            _ => {}
        }
    }
}

fn test_program(message: &Value) -> Option<TestProgram> {
    let is_test = message["profile"]["test"].as_bool()?;
    let target = &message["target"];
    is_test.then_some(TestProgram {
        name: target["name"].as_str()?.to_owned(),
        is_unit: target["kind"][0] != "test",
        path: message["executable"].as_str()?.into(),
        package: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
    })
}

struct Progress<'a> {
    done: usize,
    total: usize,
    now: &'a str,
}

impl Progress<'_> {
    fn show(&self, meter: &Meter) {
        meter.expect(self.total);
        meter.at(self.done, self.now);
    }
}

/// `    Building [=====>     ] 120/485: kube-client, ring(build.rs)`
fn progress(line: &str) -> Option<Progress<'_>> {
    let (_, counts) = line.trim_start().strip_prefix("Building [")?.split_once("] ")?;
    let (counts, now) = counts.split_once(": ").unwrap_or((counts.trim_end_matches(':'), ""));
    let (done, total) = counts.trim().split_once('/')?;
    Some(Progress { done: done.parse().ok()?, total: total.parse().ok()?, now: now.trim_end() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_cargo_is_read() {
        let line = "    Building [=====>          ] 120/485: kube-client, ring(build.rs)...   ";
        let seen = progress(line).unwrap();
        assert_eq!((seen.done, seen.total, seen.now), (120, 485, "kube-client, ring(build.rs)..."));
        assert_eq!(progress("    Building [==] 485/485").unwrap().done, 485);
        assert!(progress("   Compiling serde v1.0.0").is_none());
    }

    #[test]
    fn test_programs_and_warnings_are_found_in_the_messages_of_cargo() {
        let mut built = Built::default();
        for (test, kind) in [(true, "lib"), (true, "test"), (false, "bin")] {
            built.read(&format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a/node/Cargo.toml","executable":"/t/node-1",
                "target":{{"kind":["{kind}"],"name":"node"}},"profile":{{"test":{test}}}}}"#
            ));
        }
        built.read(r#"{"reason":"compiler-message","message":{"rendered":"warning: a test of warnings"}}"#);
        built.read("cargo says something else");
        let units: Vec<bool> = built.tests.iter().map(|program| program.is_unit).collect();
        assert_eq!((units, built.warnings), (vec![true, false], 1));
        assert_eq!(built.tests[0].package, Path::new("/a/node"));
    }
}
