//! Runs the work of requests: on the thread that read the request until it first has to wait, which it usually does not, and
//! on a pool from then on. What waits occupies no thread.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::Context;
use std::thread;

use futures::future::BoxFuture;
use futures::task::{ArcWake, waker_ref};
use parking_lot::Mutex;
use tracing::{Instrument as _, Span};

use crate::meter::METER;

#[derive(Clone)]
pub(crate) struct Workers {
    ready: Sender<Arc<Work>>,
    /// Each piece of work has a copy until it is done.
    unfinished: Sender<()>,
}

struct Work {
    /// `None` when it is done.
    rest: Mutex<Option<BoxFuture<'static, ()>>>,
    ready: Sender<Arc<Work>>,
}

/// The end of all work. No program waits for an upload that the kernel completes for a writer that died.
pub(crate) struct Finish(Receiver<()>);

impl Workers {
    pub(crate) fn new(threads: usize) -> io::Result<(Self, Finish)> {
        let (ready, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..threads {
            let queue = Arc::clone(&queue);
            let name = format!("fuse-answer-{number}");
            let work = move || {
                while let Some(work) = next(&queue) {
                    advance(&work);
                }
            };
            thread::Builder::new().name(name).spawn(work)?;
        }
        let (unfinished, finish) = mpsc::channel();
        Ok((Self { ready, unfinished }, Finish(finish)))
    }

    pub(crate) fn run(&self, span: Span, work: impl Future<Output = ()> + Send + 'static) {
        let unfinished = self.unfinished.clone();
        let work = async move {
            METER.track(work).await;
            drop(unfinished);
        };
        let rest = Mutex::new(Some(Box::pin(work.instrument(span)) as BoxFuture<'static, ()>));
        advance(&Arc::new(Work { rest, ready: self.ready.clone() }));
    }
}

/// `None` when all senders are gone.
fn next(queue: &Mutex<Receiver<Arc<Work>>>) -> Option<Arc<Work>> {
    queue.lock().recv().ok()
}

/// Runs the work until it has to wait for something, which queues it again later.
fn advance(work: &Arc<Work>) {
    let waker = waker_ref(work);
    let mut rest = work.rest.lock();
    // It may have been queued more than once, and be done already.
    let Some(future) = rest.as_mut() else { return };
    if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        *rest = None;
    }
}

impl ArcWake for Work {
    fn wake_by_ref(work: &Arc<Self>) {
        // The threads live as long as there is a sender.
        let _ = work.ready.send(Arc::clone(work));
    }
}

impl Finish {
    /// Returns when the workers are dropped and everything that they began is done.
    pub(crate) fn wait(self) {
        // Nothing is sent: this returns when the last sender is dropped.
        let _ = self.0.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::channel::oneshot;

    #[test]
    fn work_that_does_not_wait_runs_on_this_thread() {
        let (workers, _finish) = Workers::new(1).unwrap();
        let (sender, done) = mpsc::channel();
        workers.run(Span::none(), async move { sender.send(thread::current().id()).unwrap() });
        assert_eq!(done.try_recv().unwrap(), thread::current().id());
    }

    #[test]
    fn work_that_waits_occupies_no_thread_and_is_done_before_the_end() {
        let (workers, finish) = Workers::new(1).unwrap();
        let (sender, done) = mpsc::channel();
        let waiting: Vec<_> = (0..100)
            .map(|number| {
                let (go, wait) = oneshot::channel::<()>();
                let sender = sender.clone();
                workers.run(Span::none(), async move {
                    wait.await.unwrap();
                    sender.send(number).unwrap();
                });
                go
            })
            .collect();
        workers.run(Span::none(), async move { sender.send(-1).unwrap() });
        assert_eq!(done.try_recv().unwrap(), -1, "a hundred others wait on the only thread");
        drop(workers);
        for go in waiting {
            go.send(()).unwrap();
        }
        finish.wait();
        let mut numbers: Vec<i32> = done.try_iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }
}
