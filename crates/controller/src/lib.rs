//! The controller: keeps attachments and Mountpoint Pods true to the workloads in the cluster, and provisions claims.
//!
//! In reading order: [`watch`] fills the [`world`]; [`dispatch`] hands out [`key`]s; [`reconcile`] gathers a [`group`] with
//! [`live_read`]s, which decides on [`step`]s; [`apply`] writes them; [`notices`] and [`conditions`] say what users get to
//! see, and [`events`] publishes it.

pub mod api;
pub mod apply;
pub mod conditions;
pub mod definition;
pub mod dispatch;
pub mod events;
pub mod flags;
pub mod group;
pub mod headroom;
pub mod key;
pub mod live_read;
pub mod metrics;
pub mod mountpoint_pod;
pub mod notices;
pub mod observed;
pub mod provision;
pub mod queues;
pub mod reconcile;
pub mod resources;
pub mod room;
pub mod run;
#[cfg(test)]
mod simulation;
pub mod slim;
pub mod step;
mod tenure;
pub mod upgrade;
pub mod warm;
pub mod watch;
pub mod world;
