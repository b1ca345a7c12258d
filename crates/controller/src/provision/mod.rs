//! Provisioning: buckets for claims.
//!
//! A claim's journey is [`claims`]: observe, plan, apply. A released volume's is [`reclaim`], in the same three parts.
//! [`csi_service`] serves the same operations to a csi-provisioner. Below them are the [`new_volume`] that a claim and its
//! [`class`] ask for, its [`volume_id`], the [`bucket`] behind it, the [`s3`] client, and the [`kubernetes`] objects.

pub mod bucket;
pub mod claims;
pub mod class;
pub mod context;
mod created_volumes;
mod csi_request;
pub mod csi_service;
pub mod driver_credentials;
pub mod error;
pub mod events;
pub mod kubernetes;
pub mod metrics;
pub mod new_volume;
pub mod reclaim;
pub mod s3;
#[cfg(test)]
mod simulation;
pub mod volume_id;
