//! Wires everything together: context, background operations, sockets, registration.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::names::DRIVER;
use futures::future::{OptionFuture, join};
use kube::Client;
use mounter::deadlines;
use service::csi::identity_server::IdentityServer;
use service::csi::node_server::NodeServer;
use service::events::Events;
use service::identity::Identity;
use service::probes::{self, Probes};
use service::socket;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::context::{Context, Installation};
use crate::descriptors::KeptDescriptors;
use crate::drain;
use crate::events::MountEvents;
use crate::flags::{Flags, Registration};
use crate::heal;
use crate::liveness::LivenessProbe;
use crate::locks::Locks;
use crate::metrics::{Metrics, MountFigures};
use crate::mounts::Mounts;
use crate::node_cache::NodeCache;
use crate::publish::early;
use crate::published::PublishedRequests;
use crate::registration::Registrar;
use crate::rpc::NodeService;
use crate::safe_path::Root;
use crate::succession;
use crate::sweep;
use crate::taint;

#[derive(Debug, Error)]
pub enum RunError {
    #[error("cannot open the kubelet's directory {path} (--kubelet-path): {source}")]
    Kubelet { path: PathBuf, source: std::io::Error },
    #[error("cannot serve probes on {address} (--probes-address): {source}")]
    Probes { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot listen on {path}: {source}")]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("the CSI server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Runs until `stop`. Mounts stay.
pub async fn run(client: Client, flags: Flags, stop: CancellationToken) -> Result<(), RunError> {
    let kubelet_error = |source| RunError::Kubelet { path: flags.kubelet_path.clone(), source };
    let open_kubelet = || Root::open(&flags.kubelet_path).map_err(kubelet_error);
    let (kubelet, mounts) = (open_kubelet()?, Mounts::default());
    let cache = NodeCache::start(&client, &flags.node_name, &flags.mountpoint_namespace);
    let (metrics, registry) = Metrics::register(MountFigures {
        mounts: mounts.clone(),
        cache: cache.clone(),
        kubelet: open_kubelet()?,
    });
    let ready = Arc::new(AtomicBool::new(false));
    let check = {
        let ready = Arc::clone(&ready);
        let reason = || "not registered with the kubelet yet".to_owned();
        Arc::new(move || ready.load(Ordering::Relaxed).then_some(()).ok_or_else(reason))
    };
    let probes = Probes { healthy: Arc::new(|| Ok(())), ready: check, metrics: registry };
    let address = flags.probes_address;
    probes::serve(address, probes, stop.clone())
        .await
        .map_err(|source| RunError::Probes { address, source })?;
    tracing::info!(%address, node = flags.node_name, version = env!("CARGO_PKG_VERSION"), "started");

    let context = Arc::new(Context {
        kubelet,
        cache,
        mounts,
        liveness: LivenessProbe::default(),
        locks: Locks::default(),
        descriptors: KeptDescriptors::default(),
        installation: Installation::of(&flags),
        published: PublishedRequests::default(),
        events: MountEvents::new(Events::new(client.clone(), Some(&flags.node_name))),
        metrics,
    });
    tokio::spawn(drain::run(Arc::clone(&context), stop.clone()));
    // They go on while a mount depends on this process.
    let release = CancellationToken::new();
    let healing = tokio::spawn(heal::run(Arc::clone(&context), release.clone()));
    tokio::spawn(early::run(Arc::clone(&context), stop.clone()));
    tokio::spawn(succession::run(Arc::clone(&context), release.clone()));
    tokio::spawn(sweep::run(Arc::clone(&context), stop.clone()));

    let socket_error = |path: &PathBuf| {
        let path = path.clone();
        move |source| RunError::Socket { path, source }
    };
    let endpoint = flags.kubelet_path.join("plugins").join(DRIVER).join("csi.sock");
    let csi = socket::listen(&endpoint).map_err(socket_error(&endpoint))?;
    let service = NodeService { context: Arc::clone(&context), max_volumes: flags.max_volumes.into() };
    let server = Server::builder()
        .add_service(IdentityServer::new(Identity { ready: Arc::clone(&ready) }))
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(csi, stop.clone().cancelled_owned());
    let mut server = tokio::spawn(server);

    let (registered, mut is_registered) = watch::channel(flags.registration == Registration::Off);
    let registry = flags.kubelet_path.join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
    let registration = if flags.registration == Registration::On {
        let registrar = Registrar::new(endpoint.to_string_lossy().into_owned(), registered);
        let task = registrar.serve(registry.clone(), stop.clone()).map_err(socket_error(&registry))?;
        Some(tokio::spawn(task))
    } else {
        None
    };
    tokio::spawn(async move {
        let mut first = Some((client, flags.node_name));
        loop {
            let registered = *is_registered.borrow_and_update();
            ready.store(registered, Ordering::Relaxed);
            // Only after the registration: the CSINode may still list the driver of an earlier process.
            if let Some((client, node)) = first.take_if(|_| registered) {
                tokio::spawn(taint::keep_removed(client, node));
            }
            if is_registered.changed().await.is_err() {
                return;
            }
        }
    });

    let ended = tokio::select! {
        // It failed by itself: the kubelet restarts the container.
        ended = &mut server => Some(ended),
        Some(Ok(Err(source))) = OptionFuture::from(registration) => return Err(socket_error(&registry)(source)),
        () = stop.cancelled() => {
            let handed_over = async {
                succession::wait_until_served(&context).await;
                release.cancel();
                // Nothing serves a mount in the middle of a move.
                healing.await
            };
            let last = join(&mut server, handed_over);
            tokio::time::timeout(deadlines::PUBLISH, last).await.ok().map(|(ended, _)| ended)
        }
    };
    match ended {
        Some(Ok(outcome)) => Ok(outcome?),
        // A call that hangs must not prevent the exit.
        Some(Err(_)) | None => Ok(()),
    }
}
