//! How long each part of a mount may take. Every process waits a little longer than the one it waits for, so that it
//! learns the reason of a failure instead of a timeout.

use std::time::Duration;

/// The mount process waits this long for the S3 server's first answer. The kubelet tries again by itself. That two exchanges for
/// temporary keys fit into it is asserted in the mount process: `exchange` has an HTTP client, which the mounter does without.
pub const S3_ANSWER: Duration = Duration::from_secs(8);
/// An S3 server that is there answers sooner; after this, the mount process starts to diagnose why it does not.
pub const DIAGNOSE_AFTER: Duration = Duration::from_secs(1);
/// For each of [`DIAGNOSE_STEPS`]: name resolution, connection, TLS handshake.
pub const DIAGNOSE_STEP: Duration = Duration::from_secs(2);
pub const DIAGNOSE_STEPS: u32 = 3;
/// A server that was only slow may still answer after the diagnosis, which then was wrong.
pub const DIAGNOSE_GRACE: Duration = Duration::from_secs(1);

/// A mount process that is to leave its mount waits this long for writes that are under way.
pub const WRITES_END: Duration = Duration::from_secs(2);
/// The mounter waits this long for the mount process to say whether it can leave. Programs that write wait, too.
pub const MOUNT_PROCESS_LEAVES: Duration = Duration::from_secs(4);

/// Before a mount process is killed, its threads stop: at once, unless one of them waits for memory.
pub const THREADS_STOP: Duration = Duration::from_secs(1);

/// A node that has connected sends its request at once. One that does not must not keep the next one waiting.
pub const REQUEST_ARRIVES: Duration = Duration::from_secs(2);
/// A reply is a few hundred bytes, which fit into the socket's buffer.
pub const REPLY_SENT: Duration = Duration::from_secs(2);

/// The mounter waits this long for the mount process to say whether it serves.
pub const MOUNT_PROCESS_REPLY: Duration = Duration::from_secs(9);
/// The node waits this long for the mounter's reply.
pub const HAND_OVER: Duration = Duration::from_secs(10);
/// The node waits this long for the attachment, the Mountpoint Pod and its mounter. The kubelet mounts one pod of a volume
/// at a time: a publish that waits keeps all others waiting.
pub const MOUNTER_LISTENS: Duration = Duration::from_secs(14);
/// The same for the mount of a workload whose mount has died. The unpublish of a workload that is being deleted gets ABORTED
/// meanwhile.
pub const MOUNTER_LISTENS_AGAIN: Duration = Duration::from_secs(5);
/// The node waits this long for an answer of the API server, which must not use up a publish's time.
pub const API_ANSWER: Duration = Duration::from_secs(3);
/// The node waits this long for a mount to answer a check. A mount process answers `statfs` itself within milliseconds, on a
/// busy node within a second.
pub const CHECK: Duration = Duration::from_secs(3);
/// A publish ends within this, unless it moves a mount whose pods do not answer: the kubelet mounts one pod of a volume at a time.
/// A node service that is stopping waits for it.
pub const PUBLISH: Duration = Duration::from_secs(30);

const fn seconds(duration: Duration) -> u64 {
    duration.as_secs()
}

const _: () = {
    let diagnosis =
        seconds(DIAGNOSE_AFTER) + DIAGNOSE_STEPS as u64 * seconds(DIAGNOSE_STEP) + seconds(DIAGNOSE_GRACE);
    assert!(
        diagnosis <= seconds(S3_ANSWER),
        "the diagnosis must be complete before the mount process gives up"
    );
    assert!(
        seconds(S3_ANSWER) < seconds(MOUNT_PROCESS_REPLY),
        "the mounter must hear why S3 does not answer"
    );
    assert!(
        seconds(MOUNT_PROCESS_REPLY) < seconds(HAND_OVER),
        "the node must hear why the mount process failed"
    );
    assert!(
        seconds(WRITES_END) < seconds(MOUNT_PROCESS_LEAVES),
        "the mounter must hear why the mount process cannot leave"
    );
    let leaving = seconds(REQUEST_ARRIVES)
        + seconds(MOUNT_PROCESS_LEAVES)
        + seconds(THREADS_STOP)
        + seconds(REPLY_SENT);
    assert!(leaving < seconds(HAND_OVER), "the node must hear whether the mount process has left");
    assert!(
        seconds(MOUNTER_LISTENS_AGAIN) < seconds(MOUNTER_LISTENS),
        "a mount that is repaired must not delay an unpublish for longer than one that is published"
    );
    // One check, of a target whose mount does not answer: a source that answers its check, however late, needs no hand-over.
    let publish = seconds(MOUNTER_LISTENS) + seconds(API_ANSWER) + seconds(CHECK) + seconds(HAND_OVER);
    assert!(publish <= seconds(PUBLISH), "a publish must have time left for a target that does not answer");
};
