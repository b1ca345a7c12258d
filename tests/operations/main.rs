//! What administrators do with the driver on a real node, while workloads use it. Each story has the node to itself.

mod headroom;
mod migrate;
mod moves;
mod pages;
mod restarts;
mod uninstall;
mod values;
mod warm;

use s3_csi_tests::{changed, story};
