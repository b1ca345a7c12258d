//! What the handling of claims shares.

use std::sync::Arc;

use contract::names::DRIVER;
use jiff::Timestamp;

use super::account::StartedAccounts;
use super::cache::ProvisionCache;
use crate::provision::context::Context;

pub(super) struct ClaimContext {
    pub(super) context: Arc<Context>,
    pub(super) cache: ProvisionCache,
    pub(super) accounts: StartedAccounts,
    /// Identifies this process, like csi-provisioner's identity.
    pub(super) identity: String,
}

impl ClaimContext {
    pub(super) fn new(context: Arc<Context>, cache: ProvisionCache) -> Self {
        let identity = format!("{}-{}-{DRIVER}", Timestamp::now().as_millisecond(), std::process::id());
        Self { context, cache, accounts: StartedAccounts::default(), identity }
    }
}
