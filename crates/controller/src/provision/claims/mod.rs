//! A claim's journey to its volume: [`observe`], [`plan`], [`apply`]. The [`provisioner`] runs it for one key of the queue
//! at a time.

pub mod account;
pub(super) mod apply;
pub mod cache;
pub mod claim;
mod claim_context;
mod observe;
pub mod plan;
pub mod provisioner;
