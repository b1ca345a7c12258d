//! What every suite stands on: the cluster around it, waiting with a deadline, and touching served paths safely.

pub mod controller;
mod inside;
pub mod mountpoint_pod;
pub mod relay;
mod served;
pub mod stage;
mod wait;

pub use inside::{Inside, cluster};
pub use served::within;
pub use stage::Stage;
pub use wait::{Seen, eventually};
