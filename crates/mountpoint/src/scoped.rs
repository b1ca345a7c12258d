//! Values that accompany a call through the library, whose arguments have no room for them.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::thread::LocalKey;

/// Whatever the work calls finds the value in the key. The work must do that itself, and not on tasks that it spawns.
pub(crate) async fn scoped<V: Clone, T>(
    key: &'static LocalKey<RefCell<Option<V>>>,
    value: &V,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        key.set(Some(value.clone()));
        let polled = work.as_mut().poll(context);
        key.set(None);
        polled
    })
    .await
}
