//! What the suites share: the cluster around them, waiting with a deadline, and safe access to mounted paths.

pub mod account;
pub mod actor;
pub mod agent;
pub mod alone;
pub mod beat;
pub mod changed;
pub mod chaos;
pub mod chart;
pub mod claims;
pub mod controller;
pub mod csi;
pub mod denial;
#[cfg(test)]
mod documented;
pub mod driver_pods;
pub mod examples;
pub mod faulty;
pub mod folder;
mod http;
mod inside;
pub mod killer;
pub mod manifest;
pub mod memory_limit;
pub mod metadata;
#[cfg(test)]
mod modules;
pub mod monitoring;
pub mod mount_deaths;
pub mod mountpoint_pod;
pub mod node;
pub mod pages;
pub mod paste;
pub mod permissions;
pub mod plugin;
pub mod processes;
pub mod program;
pub mod prometheus;
pub mod reference;
pub mod refusal;
pub mod relay;
pub mod relocation;
pub mod right;
pub mod sanity;
pub mod secrecy;
mod served;
pub mod stage;
pub mod story;
pub mod token;
mod wait;
pub mod web_identity;

pub use inside::{Inside, cluster};
pub use served::within;
pub use stage::Stage;
pub use wait::{Seen, eventually, reached};
