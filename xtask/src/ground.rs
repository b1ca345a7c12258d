//! Builds what a cluster consists of, from package registries to images. Each command does this first.

use anyhow::{Context as _, Result};

use crate::cache::Cache;
use crate::debian;
use crate::definitions;
use crate::image;
use crate::programs::{Kubernetes, Programs, Purpose};

/// For the demo and for `cluster up`.
pub fn prepare(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    prepare_with(cache, &[kubernetes], Purpose::Cluster, || Ok(()))
}

/// The same for several releases, with additional builds. Go and Cargo run at the same time, because each spends minutes on
/// a single large package.
pub fn prepare_with<T: Send>(
    cache: &Cache,
    releases: &[Kubernetes],
    purpose: Purpose,
    compile: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    debian::ensure_packages()?;
    debian::ensure_root()?;
    for release in releases {
        if !Programs::are_built(cache, *release, purpose)? {
            // Checked before minutes of other work.
            debian::ensure_go()?;
        }
    }
    std::thread::scope(|scope| {
        let programs = scope.spawn(|| {
            releases.iter().try_for_each(|release| Programs::ensure(cache, *release, purpose))?;
            if purpose == Purpose::Tests { definitions::ensure(cache) } else { Ok(()) }
        });
        let compiled = image::build_all(cache).and_then(|_| compile());
        programs.join().ok().context("the thread that runs Go panicked")??;
        compiled
    })
}
