//! What every suite stands on: the cluster around it, waiting with a deadline, and touching served paths safely.

mod inside;
mod served;
mod wait;

pub use inside::{Inside, cluster};
pub use served::within;
pub use wait::{Seen, eventually};
