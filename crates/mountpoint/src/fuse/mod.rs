//! Answers the kernel with the library's file system. A request that has to wait for the S3 server waits as a future and
//! occupies no thread: otherwise a server that never answers would also keep `statfs` and everything else that needs no
//! server from being answered.

mod replies;
mod requests;
mod workers;

use std::future::Future;
use std::sync::Arc;

use mountpoint_s3_fs::S3Filesystem;
use mountpoint_s3_fs::fs::Error;
use tracing::Span;

use crate::client::Client;
use crate::server_timeout::ServerTimeout;
use replies::log_failure;
pub(crate) use workers::{Finish, Workers};

pub(crate) struct FuseFilesystem {
    files: Arc<S3Filesystem<Client>>,
    workers: Workers,
    server_timeout: Arc<ServerTimeout>,
}

impl FuseFilesystem {
    pub(crate) fn new(
        files: S3Filesystem<Client>,
        workers: Workers,
        server_timeout: Arc<ServerTimeout>,
    ) -> Self {
        Self { files: Arc::new(files), workers, server_timeout }
    }

    /// Runs the handler and replies with its result, or with the errno of its failure.
    fn answer<T, H>(&self, span: Span, handler: H, reply: impl FnOnce(Result<T, i32>) + Send + 'static)
    where
        T: Send + 'static,
        H: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.workers.run(span, async move { reply(handler.await.map_err(|error| log_failure(&error))) });
    }

    fn files(&self) -> Arc<S3Filesystem<Client>> {
        Arc::clone(&self.files)
    }
}
