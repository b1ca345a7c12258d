//! The cost of the cluster and the images: start, stop, memory, size.

use std::time::Instant;

use anyhow::{Result, bail};

use super::figures::Figures;
use crate::cache::Cache;
use crate::cluster::{Cluster, Plan, State};
use crate::programs::Kubernetes;
use crate::{ground, image};

const REPETITIONS: usize = 5;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
    ground::prepare(cache, Kubernetes::default())?;
    let cluster = Cluster::named(cache, "bench");
    cluster.down()?;
    let (mut up, mut down, mut memory, mut images) = (vec![], vec![], vec![], vec![]);
    for _ in 0..repetitions.unwrap_or(REPETITIONS) {
        // Without compilation: what each start takes.
        images.push(seconds(|| image::build_all(cache).map(drop))?);
        up.push(seconds(|| cluster.up(Plan::default()))?);
        let State::Up { resident_mb, .. } = cluster.state()? else { bail!("the cluster is not up") };
        memory.push(f64::from(u32::try_from(resident_mb)?));
        down.push(seconds(|| cluster.down())?);
    }
    let mut figures = Figures::default();
    figures.add("cluster_up_s", up);
    figures.add("cluster_down_s", down);
    figures.add("cluster_rss_mb", memory);
    figures.add("image_build_s", images);
    Ok(figures)
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}
