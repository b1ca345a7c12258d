//! User journeys on a real node.

mod attachments;
mod bounds;
mod caches;
mod classes;
mod credentials;
mod deaths;
mod doctor;
mod evictions;
mod examples;
mod failures;
mod journeys;
mod layers;
mod object_store;
mod plugin;
mod pods;
mod provision;
mod refusals;
mod semantics;
mod sharing;
mod top;
mod trace;

use s3_csi_tests::{changed, story};
