//! What controller, node and mount process agree on. Pure: no client, no sockets, no clock.

pub mod arguments;
pub mod attachment;
pub mod authentication;
pub mod keys;
pub mod mount_option;
pub mod mountpoint_pod;
pub mod names;
pub mod options;
pub mod quantity;
pub mod s3;
pub mod sharing;
pub mod slim;
pub mod text;
pub mod trace;
pub mod volume;
pub mod volume_plan;
