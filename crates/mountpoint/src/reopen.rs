//! Why a file is opened again, which the library's arguments have no room for.

use std::cell::RefCell;

use crate::scoped::scoped;
use crate::uploads::Published;

/// Why a file that was written here is opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// To replace this object and no other with a longer one.
    Continued {
        object: Published,
        /// The server copies it to the beginning of the longer one.
        is_copied: bool,
    },
    /// To repeat what a mount process that died had not published.
    Repeated {
        /// There was no object when the file was opened first.
        creates: bool,
    },
}

thread_local! {
    static AGAIN: RefCell<Option<Again>> = const { RefCell::new(None) };
}

/// Opens a file through the library.
pub(crate) async fn again<T>(why: &Again, open: impl Future<Output = T>) -> T {
    scoped(&AGAIN, why, open).await
}

/// Inside of [`again`], why the file is opened again.
pub(crate) fn opened_again() -> Option<Again> {
    AGAIN.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    #[test]
    fn only_the_repeated_open_knows_why() {
        assert_eq!(opened_again(), None);
        let why = Again::Continued {
            object: Published { bucket: "bucket".into(), key: "key".into(), etag: "one".into() },
            is_copied: true,
        };
        assert_eq!(block_on(again(&why, async { opened_again() })), Some(why));
        assert_eq!(opened_again(), None);
    }
}
