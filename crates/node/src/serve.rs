//! A source that is served: the file system mounted, its descriptor handed over, the mounter's reply heard.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use contract::volume::AuthenticationSource;
use mounter::channel::hand_over;
use mounter::order::Order;
use mounter::reply::Reply;

use crate::comm;
use crate::credentials;
use crate::failure::{PublishError, kernel_error};
use crate::kernel;
use crate::known::MountpointPod;
use crate::place::Place;
use crate::publish::Publisher;
use crate::request::Publish;

/// Whatever becomes of it, the mounter says so before.
const HAND_OVER_WITHIN: Duration = mounter::START_WITHIN.saturating_add(Duration::from_secs(1));

impl Publisher {
    /// Mounts the source and has it served; a failure leaves nothing mounted.
    pub(crate) async fn serve(
        &self,
        publish: &Publish,
        pod: &MountpointPod,
        place: &Place,
        source: &Path,
        authentication: AuthenticationSource,
    ) -> Result<(), PublishError> {
        let began = Instant::now();
        let device =
            kernel::mount_source(place, publish.source_read_only).map_err(kernel_error("mount", source))?;
        let mut arguments = publish.arguments.clone();
        if let Some(most) = pod.cache_mebibytes.filter(|_| arguments.has("cache")) {
            arguments.set_if_absent("max-cache-size", Some(&most.to_string()));
        }
        arguments.set("user-agent-prefix", Some(&self.user_agent(authentication).await));
        let mut environment = self.installation.environment.clone();
        environment.extend(publish.environment.clone());
        environment.extend(credentials::environment(&pod.name));
        let order = Order {
            volume_id: publish.volume_id.clone(),
            bucket: publish.volume.bucket.clone(),
            arguments: arguments.render(),
            environment,
        };
        let folder = comm::path(&self.kubelet, &pod.uid);
        let until = Instant::now() + HAND_OVER_WITHIN;
        let reply =
            tokio::task::spawn_blocking(move || hand_over(&folder, &order, device.as_fd(), until)).await;
        let outcome = match reply {
            Ok(Ok(Reply::Serving(facts))) => {
                tracing::info!(
                    volume_id = publish.volume_id,
                    mountpoint_pod = pod.name,
                    version = facts.version,
                    milliseconds = began.elapsed().as_millis(),
                    "serving"
                );
                Ok(())
            }
            Ok(Ok(Reply::Refused(refused))) => Err(PublishError::Refused { pod: pod.name.clone(), refused }),
            Ok(Err(error)) => Err(PublishError::HandOver {
                pod: pod.name.clone(),
                namespace: self.installation.mountpoint_namespace.clone(),
                source: error,
            }),
            Err(panic) => Err(kernel_error("hand over", source)(io::Error::other(panic))),
        };
        match &outcome {
            Ok(()) => {
                let table = self.mounts.table().unwrap_or_default();
                table.top(source).into_iter().for_each(|mount| kernel::read_ahead(mount.device));
            }
            Err(_) => {
                if let Err(error) = kernel::detach(place) {
                    tracing::warn!(%error, source = %source.display(), "the failed mount stays");
                }
            }
        }
        outcome
    }

    /// As in the reference, so that a server's logs keep telling the same.
    async fn user_agent(&self, authentication: AuthenticationSource) -> String {
        let (version, credential_source) = (env!("CARGO_PKG_VERSION"), authentication.as_str());
        let kubernetes = self.known.cluster_version().await;
        format!("s3-csi-driver/{version} credential-source#{credential_source} k8s/{kubernetes}")
    }
}
