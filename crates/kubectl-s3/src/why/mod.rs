//! Why a pod does not have its volumes: each volume's chain from claim to mount, and where it stops.

mod claim;
mod link;
mod placement;
#[cfg(test)]
mod placement_tests;
#[cfg(test)]
pub(crate) mod scene;
mod serving;
#[cfg(test)]
mod serving_tests;
mod subject;
#[cfg(test)]
mod tests;

use contract::mountpoint_pod::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use link::Walk;
pub use link::{Cause, Link, State, Step};
pub(crate) use placement::{is_node_ready, is_registered};
pub(crate) use serving::unhealthy;
use subject::Subject;

use crate::snapshot::Snapshot;
use crate::workload::{claims, has_volumes, node, phase, start_failure};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub namespace: String,
    pub pod: String,
    pub node: String,
    pub phase: Phase,
    /// One for each volume of this driver.
    pub volumes: Vec<Chain>,
    /// The one reason, if anything is wrong.
    pub cause: Option<Cause>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    pub claim: String,
    pub links: Vec<Link>,
}

pub fn why(snapshot: &Snapshot, pod: &Pod) -> Answer {
    let mut cause = None;
    let mut volumes = Vec::new();
    for claim in claims(pod) {
        let subject = Subject { snapshot, pod, claim: &claim };
        let Some(walk) = walk(subject) else { continue };
        if cause.is_none() {
            cause.clone_from(&walk.cause);
        }
        volumes.push(Chain { claim, links: walk.links });
    }
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Answer {
        namespace: pod.namespace().unwrap_or_default(),
        pod: pod.name_any(),
        node: text(node(pod)),
        phase: phase(pod),
        cause: cause.or_else(|| own_failure(pod)).filter(|_| !phase(pod).has_ended()),
        volumes,
    }
}

/// Nothing for a volume of another driver.
fn walk(subject: Subject<'_>) -> Option<Walk> {
    let mut walk = Walk::new(subject.is_mounted());
    let found = claim::claim(subject);
    let claim = found.object();
    let class = claim.and_then(|claim| claim.spec.as_ref()?.storage_class_name.clone());
    let class = class.filter(|class| !class.is_empty());
    let bound = claim.and_then(claim::volume_name);
    walk.take(Step::Claim, found.outcome);
    if let Some(class) = &class {
        let foreign = claim::is_foreign_class(subject.snapshot, class);
        // A claim of a class of ours may be bound to a volume of another driver, and the other way round.
        if foreign && bound.as_deref().is_none_or(|name| subject.snapshot.volume(name).is_none()) {
            return None;
        }
        walk.take(Step::Class, claim::class(subject.snapshot, class, bound.is_some()));
    }
    let is_foreign = |name: &str| subject.snapshot.foreign_volumes.contains(name);
    if bound.as_deref().is_some_and(is_foreign) || claim.is_some_and(claim::is_of_foreign_provisioner) {
        return None;
    }
    let volume = bound.as_deref().and_then(|name| subject.snapshot.volume(name));
    walk.take(Step::Volume, claim::volume(subject, bound.as_deref(), class.as_deref()));
    if let Some(volume) = volume {
        walk.take(Step::Keys, placement::keys(subject.snapshot, volume));
    }
    walk.take(Step::Node, placement::node(subject));
    walk.take(Step::NodeService, placement::node_service(subject));
    let uid = subject.pod.uid().unwrap_or_default();
    let attachment = volume.and_then(|volume| subject.snapshot.attachment(&uid, &volume.name));
    walk.take(Step::Attachment, serving::attachment(subject, volume, attachment));
    walk.take(Step::MountpointPod, serving::mountpoint_pod(subject, attachment));
    walk.take(Step::Mount, serving::mount(subject, bound.as_deref(), attachment));
    Some(walk)
}

/// The volumes are there, and the pod does not run all the same.
fn own_failure(pod: &Pod) -> Option<Cause> {
    let failure = start_failure(pod).filter(|_| has_volumes(pod))?;
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    Some(Cause {
        step: Step::Workload,
        reason: failure.reason.clone(),
        message: format!("the volumes are mounted, but a container of the pod does not run: {failure}"),
        remedy: "this is not about its volumes: correct the pod, its image or its configuration".to_owned(),
        command: format!("kubectl describe pod -n {namespace} {name}"),
    })
}
