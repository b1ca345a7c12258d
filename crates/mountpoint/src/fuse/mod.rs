//! Answers the kernel with the library's file system. A request that has to wait for the S3 server waits as a future and
//! occupies no thread: otherwise a server that never answers would also keep `statfs` and everything else that needs no
//! server from being answered.

mod attributes;
mod directory;
mod failure;
mod handles;
mod inherited;
mod open_files;
mod origin;
mod read_pattern;
mod reader;
mod replies;
mod requests;
mod spool;
mod storage;
mod workers;
mod writer;

use std::future::Future;
use std::sync::Arc;

use mountpoint_s3_fs::S3Filesystem;
use tracing::Span;

use crate::client::Client;
use failure::Failure;
pub(crate) use open_files::OpenFiles;
pub(crate) use origin::Repetitions;
use replies::log_failure;
pub(crate) use spool::Spools;
pub(crate) use storage::Storage;
pub(crate) use workers::{Finish, Workers};

#[derive(Clone)]
pub(crate) struct FuseFilesystem {
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) workers: Workers,
    pub(crate) repetitions: Arc<Repetitions>,
    /// Changes of attributes that objects do not have are accepted without effect.
    pub(crate) ignores_attributes: bool,
}

impl FuseFilesystem {
    /// Runs the handler and replies with its result, or with the errno of its failure.
    fn answer<T, E, H>(&self, span: Span, handler: H, reply: impl FnOnce(Result<T, i32>) + Send + 'static)
    where
        T: Send + 'static,
        E: Into<Failure>,
        H: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.workers.run(span, async move {
            let result = handler.await;
            reply(result.map_err(|error| log_failure(&error.into())));
        });
    }

    fn files(&self) -> Arc<S3Filesystem<Client>> {
        Arc::clone(&self.open_files.storage.files)
    }

    fn open_files(&self) -> Arc<OpenFiles> {
        Arc::clone(&self.open_files)
    }
}
