//! The controller: keeps attachments and Mountpoint Pods true to the workloads in the cluster.
//!
//! In reading order: [`watch`] fills the [`world`]; [`dispatch`] hands out keys; [`reconcile`] gathers a [`group`], which
//! decides on [`step`]s; [`apply`] writes them; [`explain`] tells users.

pub mod apply;
pub mod confirm;
pub mod dispatch;
pub mod explain;
pub mod flags;
pub mod group;
pub mod metrics;
pub mod mountpoint_pod;
pub mod observed;
pub mod provision;
pub mod reconcile;
mod report;
pub mod resources;
pub mod run;
#[cfg(test)]
mod simulation;
pub mod slim;
pub mod step;
pub mod watch;
pub mod world;
