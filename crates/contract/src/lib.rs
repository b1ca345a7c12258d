//! What controller and node agree on. Pure: no client, no sockets, no clock.

pub mod arguments;
pub mod attachment;
pub mod authentication;
pub mod names;
pub mod options;
pub mod quantity;
pub mod sharing;
pub mod volume;
