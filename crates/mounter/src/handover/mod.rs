//! The hand-over: over a Unix socket the node passes the FUSE descriptor and a mount request to the mounter, and gets one
//! mount reply.

pub mod client;
mod descriptor;
pub mod frame;
mod reply;
mod request;
pub mod server;
pub mod transfer;

pub use descriptor::{FUSE_DEVICE, is_disconnected};
pub use reply::{Code, MountReply, Refused, Serving};
pub use request::{MountRequest, Purpose};
