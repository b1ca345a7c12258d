//! What the node, the mounter in a Mountpoint Pod and the mount process agree on: the hand-over, the files of the folder
//! they share, the credentials, the figures of a mount, how long each waits for the other, and how a mount process is ended
//! without losing a request.

pub mod credentials;
pub mod deadlines;
pub mod figures;
pub mod handover;
pub mod quiesce;

/// The socket of the hand-over, in the folder that the node and the Mountpoint Pod share.
pub const SOCKET: &str = "mount.sock";
/// The node creates this file before it unmounts on purpose.
pub const EXIT: &str = "mount.exit";
/// Why the mount could not begin, or has ended, for people who look into the folder. Exists until the next hand-over.
pub const ERROR: &str = "mount.err";
/// While the temporary keys of a mount are expired and cannot be renewed: why, for the node to report.
pub const EXPIRED: &str = "credentials.err";
/// How many processes of the mount have died, and in the next line why the last one did, for the node to report.
pub const DEATHS: &str = "mount.deaths";
/// The folder in which the mount process keeps what its successor needs. Emptied before each hand-over.
pub const SURVIVAL: &str = "survival";
/// In that folder, as long as a successor could go on.
pub const JOURNAL: &str = "journal";
