//! The controller: keeps attachments and Mountpoint Pods true to the workloads in the cluster.

pub mod group;
pub mod observed;
#[cfg(test)]
mod simulation;
pub mod step;
