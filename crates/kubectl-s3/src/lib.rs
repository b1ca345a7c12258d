//! `kubectl s3`: answers for the people who run the driver and for those whose pods wait.
//!
//! In reading order: [`observe`] reads a [`snapshot`] of the cluster; [`why`], [`mounts`] and [`doctor`] are pure functions
//! of it; [`output`] prints what they found. [`self_check`] and [`top`] are the parts that run inside the driver's own
//! containers, where [`exec`] starts them; [`bundle`] packs everything for a support engineer.

pub mod answer;
pub mod bundle;
pub mod class;
pub mod doctor;
pub mod error;
pub mod events;
pub mod exec;
pub mod flags;
pub mod installation;
pub mod mounts;
pub mod observe;
pub mod output;
pub mod readable;
pub mod run;
pub mod secret;
pub mod self_check;
pub mod snapshot;
pub mod top;
pub mod volume;
pub mod why;
pub mod workload;
