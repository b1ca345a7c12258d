//! Who is to serve a workload, and when: by watches of the cluster and of the folder shared with the Mountpoint Pod.

use std::time::{Duration, Instant};

use crate::comm;
use crate::failure::{PublishError, kernel_error};
use crate::known::MountpointPod;
use crate::publish::Publisher;
use crate::request::Publish;

/// A scheduler needs milliseconds. A pod that is not on this node by then may have a reason worth telling.
const SCHEDULED_WITHIN: Duration = Duration::from_secs(2);

impl Publisher {
    /// Waits for an attachment that names this workload, and for the pod that it names.
    pub(crate) async fn assigned(
        &self,
        publish: &Publish,
        until: Instant,
    ) -> Result<MountpointPod, PublishError> {
        let complete = tokio::time::timeout_at(until.into(), self.known.complete()).await;
        complete.map_err(|_| PublishError::NoApiServer)?;
        let mut changes = self.known.changes();
        loop {
            changes.borrow_and_update();
            let Publish { volume_name, volume_id, pod_uid, .. } = publish;
            let name = self.known.assignment(volume_name, volume_id, pod_uid);
            let pod = name.as_deref().and_then(|name| self.known.pod(name));
            if let Some(pod) = pod {
                self.check(publish, &pod)?;
                return Ok(pod);
            }
            let patience = if name.is_some() { until.min(Instant::now() + SCHEDULED_WITHIN) } else { until };
            if tokio::time::timeout_at(patience.into(), changes.changed()).await.is_ok() {
                continue;
            }
            let Some(pod) = name else {
                return Err(PublishError::NoAssignment {
                    volume: volume_name.clone(),
                    pod_uid: pod_uid.clone(),
                });
            };
            if let Some(reason) = self.known.trouble_elsewhere(&pod).await {
                let namespace = self.installation.mountpoint_namespace.clone();
                return Err(PublishError::PodTrouble { pod, namespace, reason });
            }
            if Instant::now() >= until {
                return Err(PublishError::NoPod(pod));
            }
        }
    }

    /// Whoever may write attachments must not be able to send descriptors and keys to any pod.
    fn check(&self, publish: &Publish, pod: &MountpointPod) -> Result<(), PublishError> {
        let reason = if pod.node.as_deref() != Some(self.known.node()) {
            "it is not on this node"
        } else if !pod.ours {
            "it does not carry the driver's labels"
        } else if pod.volume_name.as_ref().is_some_and(|name| *name != publish.volume_name) {
            "it belongs to another volume"
        } else {
            return Ok(());
        };
        Err(PublishError::WrongPod { pod: pod.name.clone(), reason })
    }

    /// Waits for the mounter, or for the reason why there is none.
    pub(crate) async fn listening(&self, pod: &MountpointPod, until: Instant) -> Result<(), PublishError> {
        let namespace = || self.installation.mountpoint_namespace.clone();
        let mut changes = self.known.changes();
        let listening = comm::listening(&self.kubelet, &pod.uid);
        tokio::pin!(listening);
        loop {
            changes.borrow_and_update();
            let now = self.known.pod(&pod.name).filter(|now| now.uid == pod.uid);
            match now {
                Some(MountpointPod { trouble: Some(reason), .. }) => {
                    return Err(PublishError::PodTrouble {
                        pod: pod.name.clone(),
                        namespace: namespace(),
                        reason,
                    });
                }
                None | Some(MountpointPod { ended: true, .. }) => {
                    return Err(PublishError::NoPod(pod.name.clone()));
                }
                Some(_) => {}
            }
            tokio::select! {
                listens = &mut listening => {
                    let folder = comm::path(&self.kubelet, &pod.uid);
                    return listens.map_err(kernel_error("watch", &folder));
                }
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {
                    return Err(PublishError::NotListening { pod: pod.name.clone(), namespace: namespace() });
                }
            }
        }
    }
}
