//! Everything a cluster is made of, from package registries to images: what each command does first.

use anyhow::{Context as _, Result};

use crate::cache::Cache;
use crate::debian;
use crate::image;
use crate::programs::{Kubernetes, Programs, Purpose};

/// For a cluster that somebody uses.
pub fn prepare(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    prepare_with(cache, kubernetes, Purpose::Cluster, || Ok(()))
}

/// And for what else there is to compile. Go and Cargo work at the same time: each of them has minutes in which one large
/// package keeps all others waiting.
pub fn prepare_with<T: Send>(
    cache: &Cache,
    kubernetes: Kubernetes,
    purpose: Purpose,
    compile: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    debian::ensure_packages()?;
    debian::ensure_root()?;
    if !Programs::are_built(cache, kubernetes, purpose)? {
        // Before minutes of other work, not after them.
        debian::ensure_go()?;
    }
    std::thread::scope(|scope| {
        let programs = scope.spawn(|| Programs::ensure(cache, kubernetes, purpose));
        let compiled = image::build_all(cache).and_then(|_| compile());
        programs.join().ok().context("the thread that runs Go ended")??;
        compiled
    })
}
