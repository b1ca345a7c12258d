//! The mount options and what may follow each.

mod key;
mod value;

pub(crate) use key::TERMINAL_OPTIONS;
pub use key::{IgnoredOption, MountOption};
pub use value::Value;
