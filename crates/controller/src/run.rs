//! Everything together: watches, leadership, dispatch, probes, the CSI socket.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::{Api, Client};
use kube_lease_manager::LeaseManagerBuilder;
use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use service::csi::controller_server::ControllerServer;
use service::csi::identity_server::IdentityServer;
use service::identity::Identity;
use service::keys::DriverKeys;
use service::probes::{self, Probes};
use service::socket;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::API_TIMEOUT;
use crate::apply::Writer;
use crate::definition;
use crate::dispatch::{Depth, dispatch};
use crate::events::WorkloadEvents;
use crate::flags::{Flags, Provisioning};
use crate::live_read::Reader;
use crate::metrics::{self, Metrics, QueueLabel};
use crate::mountpoint_pod::Blueprint;
use crate::provision::claims::provisioner::Provisioner;
use crate::provision::context::Context;
use crate::provision::csi_service::ControllerService;
use crate::provision::driver_credentials::DriverCredentials;
use crate::provision::metrics::ProvisioningMetrics;
use crate::provision::s3::client::S3Client;
use crate::provision::s3::endpoint::{Endpoint, EndpointError};
use crate::queues::{Queues, Sink, send};
use crate::reconcile::Reconciler;
use crate::tenure::Tenure;
use crate::watch::{self as watches, Caches};
use crate::world::WarmPods;

/// Writes wait for the API server, not for us: enough of them at once to keep it busy.
const WORKERS: usize = 32;
/// As many claims are worked on at once: what an S3 server can bear, which may keep each for seconds.
const PROVISIONING_WORKERS: usize = 16;
/// The same for volumes, whose objects may take many requests.
const DELETING_WORKERS: usize = 8;
/// One look takes a few requests, and there may be thousands of workloads that wait for claims.
const HEADROOM_WORKERS: usize = 4;
/// Everything is looked at again this often, in case a change was missed.
const RECHECK_EVERY: Duration = Duration::from_mins(10);
const LEASE: &str = "s3-csi-controller";
/// A successor takes over after this long at the latest: it sleeps until the lease that it saw last has run out.
const LEASE_SECONDS: u64 = 8;
/// A predecessor's last write may still be under way when this controller becomes leader: its lease and the deadline of a
/// write together.
const SOLE_WRITER_AFTER: Duration = Duration::from_secs(LEASE_SECONDS).saturating_add(API_TIMEOUT);
/// The holder renews this long before the end.
const LEASE_GRACE_SECONDS: u64 = 3;

#[derive(Debug, Error)]
pub enum RunError {
    #[error("cannot serve probes on {address} (--probes-address): {source}")]
    Probes { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot read the API groups of the API server: {0}")]
    Discovery(#[source] Box<kube::Error>),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot listen on {path} (--csi-socket): {source}")]
    Socket { path: std::path::PathBuf, source: std::io::Error },
    #[error("leader election failed: {0}")]
    Election(String),
}

/// Runs until `stop`.
pub async fn run(client: Client, flags: Flags, stop: CancellationToken) -> Result<(), RunError> {
    let (caches, sink) = (Caches::default(), Sink::default());
    let mut registry = Registry::with_prefix(metrics::PREFIX);
    let metrics = Metrics::register(&mut registry, &caches.world);
    let provisioning = ProvisioningMetrics::register(&mut registry);
    let registry = Arc::new(Mutex::new(registry));
    let filled = Arc::new(AtomicBool::new(false));
    let probes = Probes { healthy: Arc::new(|| Ok(())), ready: readiness(&filled), metrics: registry };
    let address = flags.probes_address;
    let served = probes::serve(address, probes, stop.clone()).await;
    let address = served.map_err(|source| RunError::Probes { address, source })?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "started");

    let context = provisioning_context(&client, &flags, &provisioning)?;
    if let (Some(path), Some(context)) = (&flags.csi_socket, &context) {
        let world = Arc::clone(&caches.world);
        let volume_by_handle = move |handle: &str| world.lock().volume_with_handle(handle).map(str::to_owned);
        let service = ControllerService::new(Arc::clone(context), Box::new(volume_by_handle));
        serve_csi(path, service, &filled, &stop)?;
    }
    let provisioner = context
        .filter(|_| flags.provisioning == Provisioning::On)
        .map(|context| Provisioner::new(context, caches.claims.clone()));

    let groups = client.list_api_groups().await.map_err(|error| RunError::Discovery(Box::new(error)))?;
    let detected = || groups.groups.iter().any(|group| group.name == "config.openshift.io");
    let openshift = flags.openshift.or(detected);
    let blueprint = Blueprint::new(flags.clone(), env!("CARGO_PKG_VERSION"), openshift);
    let (per_node, in_cluster) = (flags.warm_mountpoint_pods, flags.most_warm_mountpoint_pods);
    caches.world.lock().warm =
        WarmPods::new(per_node, in_cluster, blueprint.warm_shape(), blueprint.warm_resources());
    caches.world.lock().headroom.is_on = flags.reserves_headroom();
    let reconciler = Arc::new(Reconciler {
        reader: Reader::new(&client, &flags.mountpoint_namespace),
        world: Arc::clone(&caches.world),
        sink: Arc::clone(&sink),
        writer: Writer::new(&client, &flags.mountpoint_namespace, blueprint),
        events: WorkloadEvents::new(&client),
        provisioner,
        metrics: metrics.clone(),
        tenure: Mutex::default(),
        moves_on_upgrade: flags.move_on_upgrade,
    });

    // It goes on in the background if the API server does not take it now.
    let _ = tokio::time::timeout(API_TIMEOUT, tokio::spawn(definition::update(client.clone()))).await;
    tokio::select! {
        () = watches::start(&client, &flags, &caches, &sink) => {}
        () = stop.cancelled() => return Ok(()),
    }
    filled.store(true, Ordering::Relaxed);
    tracing::info!("caches filled");
    tokio::spawn(recheck(Arc::clone(&reconciler), caches.clone()));

    if !flags.leader_election {
        lead(&reconciler, &caches, stop).await;
        tracing::info!("stopped");
        return Ok(());
    }
    let tenure = Arc::new(Tenure {
        leases: Api::namespaced(client.clone(), &flags.lease_namespace),
        lease: LEASE,
        identity: identity().map_err(|error| RunError::Election(error.to_string()))?,
        duration: Duration::from_secs(LEASE_SECONDS),
    });
    let manager = LeaseManagerBuilder::new(client.clone(), LEASE)
        .with_namespace(&flags.lease_namespace)
        .with_identity(&tenure.identity)
        .with_duration(LEASE_SECONDS)
        .with_grace(LEASE_GRACE_SECONDS)
        .build()
        .await
        .map_err(|error| RunError::Election(error.to_string()))?;
    let (mut leads, task) = manager.watch().await;
    while !stop.is_cancelled() {
        let until = tokio::select! {
            begun = tenure.begin(&mut leads) => match begun {
                Some(until) => until,
                None => break,
            },
            () = stop.cancelled() => break,
        };
        tokio::spawn(definition::update(client.clone()));
        caches.world.lock().sole_writer_from = Some(Instant::now() + SOLE_WRITER_AFTER);
        lead(&reconciler, &caches, tenure.over(leads.clone(), until, &stop)).await;
        caches.world.lock().sole_writer_from = None;
        if !stop.is_cancelled() {
            tracing::info!("lost leadership");
        }
    }
    tracing::info!("stopped");
    // Dropping the channel gives the lease back, so that a successor that starts now need not wait.
    drop(leads);
    match task.await {
        Ok(Err(error)) if !stop.is_cancelled() => Err(RunError::Election(error.to_string())),
        _ => Ok(()),
    }
}

/// `None` where buckets are not provisioned.
fn provisioning_context(
    client: &Client,
    flags: &Flags,
    metrics: &ProvisioningMetrics,
) -> Result<Option<Arc<Context>>, RunError> {
    if flags.provisioning == Provisioning::Off && flags.csi_socket.is_none() {
        return Ok(None);
    }
    let endpoint = Endpoint::parse(&flags.endpoint_url, &flags.region)?;
    let ca_bundle = flags.ca_bundle.as_deref();
    let s3 = S3Client::new(endpoint, flags.s3_addressing, ca_bundle, &flags.s3_proxy, metrics);
    let keys = DriverKeys { folder: flags.credentials_dir.clone() };
    let driver = DriverCredentials::new(keys, &flags.identity, s3.endpoint.default_region(), ca_bundle);
    Ok(Some(Arc::new(Context::new(client, s3, driver, metrics.buckets_kept.clone()))))
}

/// Whether this controller is the leader or not: csi-provisioner elects its own.
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
            tracing::error!(%error, "CSI service failed");
        }
    });
    tracing::info!(path = %path.display(), "CSI service started");
    Ok(())
}

/// Reconciles until `stop`, beginning with all there is.
async fn lead(reconciler: &Arc<Reconciler>, caches: &Caches, stop: CancellationToken) {
    let (mounts, to_mount) = mpsc::unbounded_channel();
    let (provisioning, to_provision) = mpsc::unbounded_channel();
    let (deletions, to_delete) = mpsc::unbounded_channel();
    let (headroom, to_reserve) = mpsc::unbounded_channel();
    *reconciler.sink.lock() = Some(Queues { mounts, provisioning, deletions, headroom });
    *reconciler.tenure.lock() = stop.clone();
    send(&reconciler.sink, caches.all_keys());
    reconciler.metrics.leader.set(1);
    tracing::info!("became leader");
    let handle = |key| Arc::clone(reconciler).handle(key);
    let observe = |queue| {
        let gauge = |of: &Family<QueueLabel, Gauge>| of.get_or_create_owned(&QueueLabel { queue });
        let (waiting, retries) = (gauge(&reconciler.metrics.queues), gauge(&reconciler.metrics.retries));
        move |depth: Depth| {
            waiting.set(i64::try_from(depth.ready).unwrap_or(i64::MAX));
            retries.set(i64::try_from(depth.retries).unwrap_or(i64::MAX));
        }
    };
    tokio::join!(
        dispatch(to_mount, WORKERS, stop.clone(), handle, observe("mounts")),
        dispatch(to_provision, PROVISIONING_WORKERS, stop.clone(), handle, observe("provisioning")),
        dispatch(to_delete, DELETING_WORKERS, stop.clone(), handle, observe("deletions")),
        dispatch(to_reserve, HEADROOM_WORKERS, stop, handle, observe("headroom")),
    );
    *reconciler.sink.lock() = None;
    reconciler.metrics.leader.set(0);
    reconciler.metrics.queues.clear();
    reconciler.metrics.retries.clear();
}

/// The host name, which is the pod's name, and a UUID, so that a restarted container has another identity.
fn identity() -> std::io::Result<String> {
    let read = |file| Ok(std::fs::read_to_string(format!("/proc/sys/kernel/{file}"))?.trim().to_owned());
    read("hostname").and_then(|host| Ok(format!("{host}_{}", read("random/uuid")?)))
}

async fn recheck(reconciler: Arc<Reconciler>, caches: Caches) {
    loop {
        tokio::time::sleep(RECHECK_EVERY).await;
        reconciler.events.forget(|uid| caches.world.lock().workloads.contains_key(uid));
        send(&reconciler.sink, caches.all_keys());
    }
}

fn readiness(filled: &Arc<AtomicBool>) -> probes::Check {
    let filled = Arc::clone(filled);
    Arc::new(move || {
        let filled = filled.load(Ordering::Relaxed);
        filled.then_some(()).ok_or_else(|| "the caches are not filled yet".to_owned())
    })
}
