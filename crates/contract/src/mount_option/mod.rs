//! The mount options and what may follow each.

mod key;
mod value;

pub use key::{IgnoredOption, MountOption, TERMINAL_OPTIONS};
pub use value::Value;
