//! What the suites share: the cluster around them, waiting with a deadline, and safe access to mounted paths.

pub mod account;
pub mod changed;
pub mod chart;
pub mod claims;
pub mod controller;
pub mod csi;
#[cfg(test)]
mod documented;
pub mod faulty;
mod inside;
pub mod manifest;
pub mod memory_limit;
#[cfg(test)]
mod modules;
pub mod mountpoint_pod;
pub mod node;
pub mod processes;
pub mod program;
pub mod relay;
pub mod right;
pub mod sanity;
mod served;
pub mod stage;
pub mod story;
mod wait;

pub use inside::{Inside, cluster};
pub use served::within;
pub use stage::Stage;
pub use wait::{Seen, eventually};
