//! User journeys on a real node.

mod associations;
mod attachments;
mod bounds;
mod credentials;
mod deaths;
mod driver_identity;
mod examples;
mod failures;
mod identities;
mod journeys;
mod layers;
mod migrate;
mod moves;
mod object_store;
mod permissions;
mod plugin;
mod pods;
mod precedence;
mod provision;
mod refusals;
mod reserved_room;
mod restarts;
mod semantics;
mod top;
mod uninstall;
mod warm;

use s3_csi_tests::{changed, story};
