//! Finds what a fault hits.

use contract::names::annotation;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use xtask::cluster::{Node, Part as NodePart};
use xtask::driver;

use super::inject::Target;
use super::matrix::{Fault, Moment, Part};
use super::scene::{Act, Scene};
use crate::story::LIMIT;
use crate::{Seen, reached};

impl Scene {
    /// What a fault hits. None if it is not there any more.
    pub(super) async fn target(&self, fault: Fault, act: &Act) -> Option<Target> {
        let components = |parts| Some(Target::Components(self.node, parts));
        let of_first = |parts| Some(Target::Components(Node::FIRST, parts));
        match fault.part {
            Part::Controller => self.driver_pod("s3-csi-controller", None).await,
            Part::NodeService => self.driver_pod("s3-csi-node", Some(self.node)).await,
            Part::Mounter => self.mountpoint_pod(fault, act, "s3-csi-mounter").await,
            Part::MountProcess => self.mountpoint_pod(fault, act, "s3-csi-mountpoint").await,
            Part::Kubelet => components(&[NodePart::Kubelet]),
            Part::Containerd => components(&[NodePart::Containerd]),
            Part::ApiServer => of_first(&[NodePart::ApiServer]),
            Part::Etcd => of_first(&[NodePart::Etcd]),
            Part::S3Server => of_first(&[NodePart::S3, NodePart::S3Tls]),
            Part::WholeNode => Some(Target::Node(self.node)),
        }
    }

    /// The program of the driver; it may be starting again after an earlier fault.
    async fn driver_pod(&self, app: &'static str, node: Option<Node>) -> Option<Target> {
        let pods = Api::<Pod>::namespaced(self.story.here.client.clone(), driver::NAMESPACE);
        let fits = |pod: &&Pod| {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            node.is_none_or(|node| on == Some(node.name())) && pod.metadata.deletion_timestamp.is_none()
        };
        let found = reached(LIMIT, || async {
            let found = pods.list(&ListParams::default().labels(&format!("app={app}"))).await.unwrap();
            let target = found.iter().find(fits).map(|pod| Target::program(pod, app));
            Seen::some(target.filter(|target| self.runs(target)), format!("{app} does not run"))
        });
        found.await.ok()
    }

    fn runs(&self, target: &Target) -> bool {
        !target.processes(&self.story.here.cluster).unwrap().is_empty()
    }

    /// The program in the Mountpoint Pod of the volume that is used at this moment. If it is being mounted, waits for it.
    async fn mountpoint_pod(&self, fault: Fault, act: &Act, program: &'static str) -> Option<Target> {
        let volume = match (fault.moment, act) {
            (_, Act::Mount(pod) | Act::Unmount(pod)) => pod,
            (Moment::Idle, _) => "chaos-idle",
            (Moment::Reading, _) => "chaos-reader",
            _ => "chaos-writer",
        };
        let found = reached(LIMIT, || async {
            let pods = self.story.mountpoint_pods_api().list(&ListParams::default()).await.unwrap();
            let of =
                |pod: &&Pod| pod.annotations().get(annotation::VOLUME_NAME).is_some_and(|of| of == volume);
            let target = pods.iter().find(of).map(|pod| Target::program(pod, program));
            match target.filter(|target| self.runs(target)) {
                Some(target) => Seen::Yes(Some(target)),
                None if matches!(act, Act::Unmount(_)) => Seen::Yes(None),
                None => Seen::NotYet(format!("{program} does not run for {volume}")),
            }
        });
        found.await.ok().flatten()
    }
}
