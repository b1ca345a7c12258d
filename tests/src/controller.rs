//! The controller as a process of its own, with exactly the rights it ships with.

use std::ops::Deref;

use kube::Client;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::account::{API_SERVER, CONTROLLER, install};
use crate::program::Program;

/// Tests that need nothing special share one; those that do something to a controller have none beside their own.
static SHARED: RwLock<Option<Controller>> = RwLock::const_new(None);

pub async fn shared(client: &Client) -> RwLockReadGuard<'static, Option<Controller>> {
    loop {
        let shared = SHARED.read().await;
        if shared.is_some() {
            return shared;
        }
        drop(shared);
        let mut shared = SHARED.write().await;
        if shared.is_none() {
            *shared = Some(Controller::start(client, &[]).await);
        }
    }
}

/// No controller runs while this is held, unless its holder starts one.
pub async fn none() -> RwLockWriteGuard<'static, Option<Controller>> {
    let mut shared = SHARED.write().await;
    *shared = None;
    shared
}

pub struct Controller(Program);

impl Deref for Controller {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Controller {
    /// Starts it and waits until it acts.
    pub async fn start(client: &Client, arguments: &[&str]) -> Self {
        let controller = Self::launch(client, arguments).await;
        controller.says("acting").await;
        controller
    }

    /// Starts it and does not wait.
    pub async fn launch(client: &Client, arguments: &[&str]) -> Self {
        install(client).await;
        let usual = [
            "--mountpoint-image=s3-csi.test/busybox:dev",
            "--mountpoint-image-pull-policy=Never",
            "--mountpoint-container-command=/bin/busybox",
            "--log-level=info,controller=debug",
        ];
        let arguments = usual.iter().chain(arguments).map(|argument| (*argument).to_owned());
        Self(Program::launch("s3-csi-controller", client, &CONTROLLER, API_SERVER, arguments).await)
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(self) -> std::process::ExitStatus {
        self.0.stop()
    }
}
