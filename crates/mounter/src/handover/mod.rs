//! The hand-over: over a Unix socket the node passes the FUSE descriptor and a mount request to the mounter, and gets one
//! mount reply.

pub mod client;
pub mod frame;
mod reply;
mod request;
pub mod server;

pub use reply::{Code, MountReply, Refused, Serving};
pub use request::MountRequest;

/// Exactly one descriptor is accepted. There is room for several, because the kernel silently drops what does not fit.
const MAX_DESCRIPTORS: usize = 8;
