//! Everything a cluster is made of, from package registries to images: what each command does first.

use anyhow::Result;

use crate::cache::Cache;
use crate::debian;
use crate::image;
use crate::programs::{Kubernetes, Programs};
use crate::progress::step;

pub fn prepare(cache: &Cache, kubernetes: Kubernetes) -> Result<()> {
    debian::ensure_packages()?;
    debian::ensure_root()?;
    Programs::ensure(cache, kubernetes)?;
    step("images", || image::build_all(cache)).map(drop)
}
