//! What the node, the mounter in a Mountpoint Pod and the mount process agree on: the hand-over, the files of the folder
//! they share, the credentials, and how long each waits for the other.

pub mod credentials;
pub mod deadlines;
pub mod handover;

/// The socket of the hand-over, in the folder that the node and the Mountpoint Pod share.
pub const SOCKET: &str = "mount.sock";
/// The node creates this file before it unmounts on purpose.
pub const EXIT: &str = "mount.exit";
/// The last failure in words, for people who look into the folder. The node gets it as a [`handover::MountReply`].
pub const ERROR: &str = "mount.err";
/// While the temporary keys of a mount are expired and cannot be renewed: why, for the node to report.
pub const EXPIRED: &str = "credentials.err";
