//! The cost of the cluster and the images: start, stop, memory, size.

use std::time::Instant;

use anyhow::{Result, bail};

use super::figures::Figures;
use crate::cache::Cache;
use crate::cluster::{Cluster, Plan, State};
use crate::programs::Kubernetes;
use crate::{ground, image};

const REPETITIONS: usize = 5;
/// Of a cluster of several nodes.
const NODES: u8 = 3;

pub(super) fn measure(cache: &Cache, repetitions: Option<usize>) -> Result<Figures> {
    ground::prepare(cache, Kubernetes::default())?;
    let cluster = Cluster::named(cache, "bench");
    cluster.down()?;
    let (mut up, mut down, mut memory, mut images) = (vec![], vec![], vec![], vec![]);
    let (mut up_of_several, mut memory_of_further) = (vec![], vec![]);
    for _ in 0..repetitions.unwrap_or(REPETITIONS) {
        // Without compilation: what each start takes.
        images.push(seconds(|| image::build_all(cache).map(drop))?);
        up.push(seconds(|| cluster.up(Plan::default()))?);
        let of_one = resident_mb(&cluster)?;
        memory.push(of_one);
        down.push(seconds(|| cluster.down())?);
        up_of_several.push(seconds(|| cluster.up(Plan { nodes: NODES, ..Plan::default() }))?);
        memory_of_further.push((resident_mb(&cluster)? - of_one) / f64::from(NODES - 1));
        cluster.down()?;
    }
    let mut figures = Figures::default();
    figures.add("cluster_up_s", up);
    figures.add("cluster_down_s", down);
    figures.add("cluster_rss_mb", memory);
    figures.add(&format!("cluster_{NODES}_up_s"), up_of_several);
    figures.add("mb_per_further_node", memory_of_further);
    figures.add("image_build_s", images);
    Ok(figures)
}

fn resident_mb(cluster: &Cluster) -> Result<f64> {
    let State::Up { resident_mb, .. } = cluster.state()? else { bail!("the cluster is not up") };
    Ok(f64::from(u32::try_from(resident_mb)?))
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}
