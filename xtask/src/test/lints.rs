//! The lints that need no compiler; our crates are linted while they are compiled.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::{Cache, checkout};
use crate::cargo::{build, cargo};
use crate::debian;
use crate::process::listen;
use crate::programs::{Kubernetes, Programs, Purpose};
use crate::progress::step;

pub(super) fn run(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    step("format", || check(cargo(cache).args(["fmt", "--all", "--check"])))?;
    check_workflows(cache, kubernetes)?;
    check_dependencies(cache)
}

/// `gen` compiles its generator, which takes minutes; the rest is for slower or busy machines.
const LINT_WITHIN: Duration = Duration::from_mins(40);

pub(super) fn check(command: &mut Command) -> Result<()> {
    listen(command, LINT_WITHIN, |_| {}).map(drop)
}

/// Newest at the time of writing; a lint must not change by itself.
const CARGO_DENY: &str = "0.20.2";

/// Licences, banned crates and sources, as `deny.toml` has them. Advisories are left out: they come from the network.
fn check_dependencies(cache: &Cache) -> Result<()> {
    let folder = cache.programs().join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        let mut install = cargo(cache);
        install
            .args(["install", "--debug", "--locked", "--version", CARGO_DENY, "cargo-deny", "--root"])
            .arg(&folder);
        // It runs for a second: optimizing it would take four minutes.
        install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        // Its own: with ours, a change of either would build the other again.
        build("compiling cargo-deny", install.env_remove("CARGO_TARGET_DIR"))?;
    }
    step("dependencies", || {
        let mut deny = Command::new(program);
        check(deny.current_dir(checkout()).args(["check", "bans", "licenses", "sources"]))
    })
}

/// A mistake in a workflow is otherwise found by the first release that fails.
fn check_workflows(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    if !Programs::are_built(cache, kubernetes, Purpose::Lints)? {
        debian::ensure_go()?;
        Programs::ensure(cache, kubernetes, Purpose::Lints)?;
    }
    let mut workflows = Vec::new();
    for entry in fs::read_dir(checkout().join(".github/workflows"))? {
        workflows.push(entry?.path());
    }
    step("workflows", || {
        let mut actionlint = Command::new(Programs::of(cache, kubernetes)?.tool("actionlint"));
        // What it finds must not depend on other linters that this machine happens to have.
        check(actionlint.args(["-no-color", "-shellcheck=", "-pyflakes="]).args(workflows))
    })
}
