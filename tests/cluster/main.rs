//! Whole journeys on a real node.

mod attachments;
mod bounds;
mod changed;
mod credentials;
mod deaths;
mod examples;
mod failures;
mod journeys;
mod layers;
mod object_store;
mod pods;
mod provision;
mod refusals;
mod restarts;
mod semantics;
mod story;
mod uninstall;
