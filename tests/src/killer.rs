//! Kills the mount process of a Mountpoint Pod again and again, while a test uses the mount.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use mounter::quiesce::kill_between_requests as between_requests;
use rustix::process::{Pid, Signal, kill_process};

use crate::mountpoint_pod::{LIMIT, MountpointPod, eventually};

/// Ends the process, whatever it is doing.
pub fn at_once(process: Pid) {
    // It may have ended by itself.
    let _ = kill_process(process, Signal::KILL);
}

/// Ends the process that serves now and waits until the next one serves: the mounter gives up after a few that never did.
pub fn kill(pod: &MountpointPod, end: impl Fn(Pid)) {
    let mut before = None;
    eventually("there is a mount process", || {
        before = pod.mount_process();
        before.is_some()
    });
    let before = before.unwrap();
    let served = || pod.log().matches("serving, version").count();
    let times = served();
    end(before);
    eventually("another mount process serves", || served() > times);
}

/// Runs `act` while mount processes die, each after `life` at the longest; returns its result and how many did. It is
/// repeated until there was one at least.
pub fn while_killing<T>(
    pod: &MountpointPod,
    life: Duration,
    end: impl Fn(Pid) + Sync,
    mut act: impl FnMut() -> T,
) -> (T, u32) {
    let (done, kills) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Lives of different lengths, so that not each of them ends with the same request.
            let mut part = 0;
            while !done.load(Ordering::Relaxed) {
                part = part % 4 + 1;
                thread::sleep(life * part / 4);
                kill(pod, &end);
                kills.fetch_add(1, Ordering::Relaxed);
            }
        });
        let until = Instant::now() + LIMIT;
        let result = loop {
            let result = act();
            if kills.load(Ordering::Relaxed) > 0 || Instant::now() > until {
                break result;
            }
        };
        done.store(true, Ordering::Relaxed);
        (result, kills.load(Ordering::Relaxed))
    })
}
