//! The contract between the node, the mounter in a Mountpoint Pod and the mount process: what is handed over, and what
//! is said back.

use std::time::Duration;

pub mod channel;
pub mod frame;
pub mod order;
pub mod panics;
pub mod reception;
pub mod reply;

/// The socket of the hand-over in the folder that node and Mountpoint Pod share.
pub const SOCKET: &str = "mount.sock";
/// Its presence there means that the mount is being ended on purpose.
pub const EXIT: &str = "mount.exit";
/// A mount process that has not said by then whether it serves is stuck: it gives itself 8 s. The node waits a little
/// longer, so as to learn it.
pub const START_WITHIN: Duration = Duration::from_secs(9);
/// The last failure in words, for whoever looks into the folder. The node gets it as a [`reply::Reply`].
pub const ERROR: &str = "mount.err";
