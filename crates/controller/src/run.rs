//! Everything together: watches, leadership, dispatch, probes, the CSI socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use service::csi::controller_server::ControllerServer;
use service::csi::identity_server::IdentityServer;
use service::identity::Identity;
use service::keys::DriverKeys;
use service::probes::{self, Probes};
use service::socket;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::apply::Writer;
use crate::confirm::Reader;
use crate::dispatch::dispatch;
use crate::explain::Explainer;
use crate::flags::{Flags, Provisioning};
use crate::metrics::{Metrics, QueueLabel};
use crate::mountpoint_pod::Blueprint;
use crate::provision::endpoint::{Endpoint, EndpointError};
use crate::provision::provisioner::Provisioner;
use crate::provision::rpc::ControllerService;
use crate::provision::server::Server;
use crate::provision::volume::Volumes;
use crate::reconcile::Reconciler;
use crate::watch::{self as watches, Queues, Sink, send};
use crate::world::World;

/// Writes wait for the API server, not for us: enough of them at once to keep it busy.
const WORKERS: usize = 32;
/// As many claims and volumes are worked on at once: what an S3 server can bear, which may keep each for seconds.
const PROVISIONING_WORKERS: usize = 16;
/// Everything is looked at again this often, for what no watch has told.
const RECHECK_EVERY: Duration = Duration::from_mins(10);
const LEASE: &str = "s3-csi-controller";
/// A successor takes over after this long at the latest: it sleeps until the lease that it saw last has run out.
const LEASE_SECONDS: u64 = 8;
/// A predecessor's last write may still be under way when we begin: its lease and the deadline of a write together.
const ALONE_AFTER: Duration = Duration::from_secs(LEASE_SECONDS + 10);
/// The holder renews this long before the end.
const LEASE_GRACE_SECONDS: u64 = 3;

#[derive(Debug, Error)]
pub enum RunError {
    #[error("cannot serve probes on {address} (--probes-address): {source}")]
    Probes { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot ask the API server what it is: {0}")]
    Discovery(#[source] Box<kube::Error>),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot listen on {path} (--csi-socket): {source}")]
    Socket { path: std::path::PathBuf, source: std::io::Error },
    #[error("cannot take part in the election of a leader: {0}")]
    Election(String),
}

/// Runs until `stop`.
pub async fn run(client: Client, flags: Flags, stop: CancellationToken) -> Result<(), RunError> {
    let world = Arc::new(Mutex::new(World::default()));
    let sink = Sink::default();
    let (metrics, registry) = Metrics::register(&world);
    let filled = Arc::new(AtomicBool::new(false));
    let probes = Probes { healthy: Arc::new(|| Ok(())), ready: readiness(&filled), metrics: registry };
    let address = flags.probes_address;
    let served = probes::serve(address, probes, stop.clone()).await;
    let address = served.map_err(|source| RunError::Probes { address, source })?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "started");

    let volumes = volumes(&flags, &metrics)?;
    if let (Some(path), Some(volumes)) = (&flags.csi_socket, &volumes) {
        let service = ControllerService::new(&client, Arc::clone(volumes), Arc::clone(&world));
        serve_csi(path, service, &filled, &stop)?;
    }
    let provisioner = volumes
        .filter(|_| flags.provisioning == Provisioning::On)
        .map(|volumes| Provisioner::new(&client, volumes, Arc::clone(&world)));

    let groups = client.list_api_groups().await.map_err(|error| RunError::Discovery(Box::new(error)))?;
    let openshift = groups.groups.iter().any(|group| group.name == "config.openshift.io");
    let blueprint = Blueprint::new(flags.clone(), env!("CARGO_PKG_VERSION"), openshift);
    let reconciler = Arc::new(Reconciler {
        reader: Reader::new(&client),
        mountpoint_namespace: flags.mountpoint_namespace.clone(),
        world: Arc::clone(&world),
        sink: Arc::clone(&sink),
        writer: Writer::new(&client, &flags.mountpoint_namespace, blueprint),
        explainer: Explainer::new(&client),
        provisioner,
        metrics: metrics.clone(),
    });

    tokio::select! {
        () = watches::start(&client, &flags, &world, &sink) => {}
        () = stop.cancelled() => return Ok(()),
    }
    filled.store(true, Ordering::Relaxed);
    tracing::info!("caches filled");
    tokio::spawn(recheck(Arc::clone(&reconciler)));

    if !flags.leader_election {
        lead(&reconciler, stop).await;
        return Ok(());
    }
    let manager = LeaseManagerBuilder::new(client, LEASE)
        .with_namespace(&flags.lease_namespace)
        .with_duration(LEASE_SECONDS)
        .with_grace(LEASE_GRACE_SECONDS)
        .build()
        .await
        .map_err(|error| RunError::Election(error.to_string()))?;
    let (mut leads, task) = manager.watch().await;
    while !stop.is_cancelled() {
        tokio::select! {
            changed = leads.wait_for(|leads| *leads) => if changed.is_err() { break },
            () = stop.cancelled() => break,
        }
        let alone_from = Instant::now() + ALONE_AFTER;
        reconciler.world.lock().expect("nobody panics while changing the world").alone_from =
            Some(alone_from);
        lead(&reconciler, until_deposed(leads.clone(), &stop)).await;
        reconciler.world.lock().expect("nobody panics while changing the world").alone_from = None;
    }
    // Dropping the channel gives the lease back, so that a successor that starts now need not wait.
    drop(leads);
    match task.await {
        Ok(Err(error)) if !stop.is_cancelled() => Err(RunError::Election(error.to_string())),
        _ => Ok(()),
    }
}

/// Nothing, where nobody asks for buckets.
fn volumes(flags: &Flags, metrics: &Metrics) -> Result<Option<Arc<Volumes>>, RunError> {
    if flags.provisioning == Provisioning::Off && flags.csi_socket.is_none() {
        return Ok(None);
    }
    let endpoint = Endpoint::parse(&flags.endpoint_url, &flags.region)?;
    let calls = metrics.s3_calls.clone();
    let server = Server::new(endpoint, flags.s3_addressing, flags.ca_bundle.as_deref(), calls);
    let driver_keys = DriverKeys { folder: flags.credentials_dir.clone() };
    let kept = metrics.buckets_kept.clone();
    Ok(Some(Arc::new(Volumes { server, driver_keys, kept })))
}

/// Whoever leads: csi-provisioner elects a leader of its own.
fn serve_csi(
    path: &Path,
    service: ControllerService,
    ready: &Arc<AtomicBool>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let incoming =
        socket::listen(path).map_err(|source| RunError::Socket { path: path.to_owned(), source })?;
    let identity = Identity { ready: Arc::clone(ready) };
    let serving = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(service))
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the CSI service ended");
        }
    });
    tracing::info!(path = %path.display(), "CSI service started");
    Ok(())
}

/// Acts on the world until `stop`, beginning with all there is.
async fn lead(reconciler: &Arc<Reconciler>, stop: CancellationToken) {
    let (mounts, to_mount) = mpsc::unbounded_channel();
    let (provisioning, to_provision) = mpsc::unbounded_channel();
    *reconciler.sink.lock().expect("nobody panics while sending") = Some(Queues { mounts, provisioning });
    let all = reconciler.world.lock().expect("nobody panics while changing the world").all_keys();
    send(&reconciler.sink, all);
    reconciler.metrics.leader.set(1);
    tracing::info!("acting");
    let handle = |key| Arc::clone(reconciler).handle(key);
    let observe = |queue| {
        let waiting = reconciler.metrics.queues.get_or_create_owned(&QueueLabel { queue });
        move |depth| {
            waiting.set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
    };
    tokio::join!(
        dispatch(to_mount, WORKERS, stop.clone(), handle, observe("mounts")),
        dispatch(to_provision, PROVISIONING_WORKERS, stop, handle, observe("provisioning")),
    );
    *reconciler.sink.lock().expect("nobody panics while sending") = None;
    reconciler.metrics.leader.set(0);
    reconciler.metrics.queues.clear();
    tracing::info!("no longer acting");
}

fn until_deposed(mut leads: watch::Receiver<bool>, stop: &CancellationToken) -> CancellationToken {
    let over = stop.child_token();
    let cancel = over.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = leads.wait_for(|leads| !leads) => cancel.cancel(),
            () = cancel.cancelled() => {}
        }
    });
    over
}

async fn recheck(reconciler: Arc<Reconciler>) {
    loop {
        tokio::time::sleep(RECHECK_EVERY).await;
        let keys = {
            let world = reconciler.world.lock().expect("nobody panics while changing the world");
            reconciler.explainer.forget(|uid| world.workloads.contains_key(uid));
            world.all_keys()
        };
        send(&reconciler.sink, keys);
    }
}

fn readiness(filled: &Arc<AtomicBool>) -> probes::Check {
    let filled = Arc::clone(filled);
    Arc::new(move || {
        let filled = filled.load(Ordering::Relaxed);
        filled.then_some(()).ok_or_else(|| "the caches are not filled yet".to_owned())
    })
}
