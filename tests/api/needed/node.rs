//! The same for the node service.

use std::fs;
use std::time::Duration;

use contract::names::comm_on_node;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use mounter::{JOURNAL, SURVIVAL};
use rustix::process::{Pid, Signal, kill_process};
use s3_csi_tests::account::{API_SERVER, Account, MOUNTPOINT_NAMESPACE, NODE};
use s3_csi_tests::chart::Granted;
use s3_csi_tests::controller::shared;
use s3_csi_tests::csi::{Csi, publish_request};
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::processes::processes;
use s3_csi_tests::program::Program;
use s3_csi_tests::right::Right;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::json;
use xtask::s3::ALICE;

use super::{EVERYWHERE, LIMIT, Table, check_table, duration, fails, from, story_of};

/// kubelet asks again when a publish has failed: it ends after half a minute at most.
const KUBELET_ASKS_FOR: Duration = Duration::from_mins(2);
const TAINT: &str = "s3.csi.scality.com/agent-not-ready";

#[derive(Clone, Copy, Debug)]
enum Story {
    /// A pod that is on no node yet.
    QuotesTheScheduler,
    /// One on this node.
    QuotesKubelet,
    RemovesItsTaint,
    Mourns,
    MournsAgain,
}

const STORIES: Table<Story> = {
    use Story::*;
    &[
        (EVERYWHERE, "mountpoints3podattachments", &[("list", QuotesKubelet), ("watch", QuotesKubelet)]),
        (
            EVERYWHERE,
            "nodes",
            &[("list", RemovesItsTaint), ("watch", RemovesItsTaint), ("patch", RemovesItsTaint)],
        ),
        (EVERYWHERE, "csinodes", &[("list", RemovesItsTaint), ("watch", RemovesItsTaint)]),
        (EVERYWHERE, "events", &[("create", Mourns), ("patch", MournsAgain)]),
        (MOUNTPOINT_NAMESPACE, "pods", &[("get", QuotesTheScheduler), ("list", Mourns), ("watch", Mourns)]),
    ]
};

#[tokio::test]
async fn without_any_rule_of_the_node_service_a_story_fails() {
    let first = Stage::set("needed-node").await;
    let _controller = shared(&first.here.client).await;
    let roles = NODE.roles(&[]);
    check_table(STORIES, &roles);
    let whole = NODE.variant(&first.here.client, "whole", &roles).await;
    let stories =
        [Story::QuotesTheScheduler, Story::QuotesKubelet, Story::RemovesItsTaint, Story::MournsAgain];
    let with_all = join_all(stories.map(async |story| {
        let scene = Scene::set(&format!("whole-{story:?}").to_lowercase(), &whole).await;
        duration(Box::pin(scene.unfold(story))).await
    }));
    let longest = with_all.await.into_iter().max().unwrap();
    let rights = roles
        .iter()
        .enumerate()
        .flat_map(|(number, role)| role.rights.iter().map(move |right| (number, role, right)));
    join_all(rights.map(|(number, role, right)| without(&first, &roles, number, role, right, longest))).await;
}

async fn without(
    first: &Stage,
    roles: &[Granted],
    number: usize,
    role: &Granted,
    right: &Right,
    takes: Duration,
) {
    let story = story_of(STORIES, role, right);
    let mut others = roles.to_vec();
    others[number].rights.remove(right);
    let name = format!("no-{}-{}-{number}", right.verb, right.resource);
    let account = NODE.variant(&first.here.client, &name, &others).await;
    let scene = Scene::set(&format!("node-{name}"), &account).await;
    fails(Box::pin(scene.unfold(story)), &scene.node, &right.refusal(), takes).await;
    println!("{story:?} fails without {right:?}");
}

struct Scene {
    stage: Stage,
    kubelet: Kubelet,
    node: Program,
}

impl Scene {
    async fn set(name: &str, account: &Account) -> Self {
        let (stage, kubelet) = (Stage::set(name).await, Kubelet::default());
        let taint = Patch::Merge(json!({"spec": {"taints": [{"key": TAINT, "effect": "NoExecute"}]}}));
        stage.all::<Node>().patch(&stage.node, &PatchParams::default(), &taint).await.unwrap();
        let node = NodeProgram::launch(
            account,
            API_SERVER,
            &stage.here.client,
            &stage.node,
            &kubelet,
            &["--log-level=info,node=debug"],
        )
        .await;
        Self { stage, kubelet, node }
    }

    /// Returns when it has come to its end.
    async fn unfold(&self, story: Story) {
        let csi = self.connect(&self.kubelet.csi_socket()).await;
        match story {
            Story::QuotesTheScheduler => {
                let full = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
                let status = json!({"phase": "Pending", "conditions": [full]});
                self.quotes(&csi, false, status, "Unschedulable: full").await;
            }
            Story::QuotesKubelet => {
                let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
                let container = json!({"name": "mountpoint", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waiting});
                let status = json!({"phase": "Pending", "containerStatuses": [container]});
                self.quotes(&csi, true, status, "ImagePullBackOff: no such image").await;
            }
            Story::RemovesItsTaint => self.removes_its_taint().await,
            Story::Mourns => drop(self.mourns(&csi).await),
            Story::MournsAgain => self.mourns_again(&csi).await,
        }
    }

    async fn connect(&self, socket: &std::path::Path) -> Csi {
        eventually("the socket answers", LIMIT, || async {
            match Csi::connect(socket).await {
                Ok(csi) => Seen::Yes(csi),
                Err(error) => Seen::NotYet(format!("{error}\n{}", self.node.log())),
            }
        })
        .await
    }

    async fn quotes(&self, csi: &Csi, scheduled: bool, status: serde_json::Value, words: &str) {
        let stage = &self.stage;
        stage.volume("data", &[], &[]).await;
        let workload = stage.workload("w", &["data"]).await;
        let (_, pod) = stage.attached(&workload).await;
        if scheduled {
            stage.schedule_mountpoint(&pod.name_any()).await;
        }
        stage.report_mountpoint(&pod.name_any(), status).await;
        let volume = stage.volume_name("data");
        let target = self.kubelet.target(&workload.uid().unwrap(), &volume);
        eventually("the publish says why it waits", KUBELET_ASKS_FOR, || async {
            let refused = csi.publish(publish_request(&volume, "bucket", &target)).await.unwrap_err();
            Seen::some(refused.message().contains(words).then_some(()), refused)
        })
        .await;
    }

    async fn removes_its_taint(&self) {
        let stage = &self.stage;
        let driver = json!({"name": "s3.csi.scality.com", "nodeID": stage.node});
        let known = json!({"metadata": {"name": stage.node}, "spec": {"drivers": []}});
        let known: CSINode = from(known);
        let csi_nodes = stage.all::<CSINode>();
        csi_nodes.create(&PostParams::default(), &known).await.unwrap();
        self.connect(&self.kubelet.registration_socket()).await.registered().await;
        // kubelet adds it a moment later.
        self.node.says("CSINode does not list the driver yet").await;
        let patch = Patch::Merge(json!({"spec": {"drivers": [driver]}}));
        csi_nodes.patch(&stage.node, &PatchParams::default(), &patch).await.unwrap();
        let is_removed = async || {
            eventually("the taint is gone", LIMIT, || async {
                let node = stage.all::<Node>().get(&stage.node).await.unwrap();
                let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
                Seen::some(taints.is_empty().then_some(()), format!("{taints:?}"))
            })
            .await;
        };
        is_removed().await;
        // kubelet registers the node again.
        let patch = Patch::Merge(json!({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}));
        stage.all::<Node>().patch(&stage.node, &PatchParams::default(), &patch).await.unwrap();
        is_removed().await;
    }

    /// A mounted bucket whose mount process dies, which is reported. Returns the Mountpoint Pod and its name.
    async fn mourns(&self, csi: &Csi) -> (MountpointPod, String) {
        let (stage, bucket_name) = (&self.stage, self.stage.here.namespace.clone());
        bucket(ALICE, &bucket_name);
        stage.volume("data", &[("bucketName", &bucket_name)], &[]).await;
        let workload = stage.workload("w", &["data"]).await;
        let (_, pod) = stage.attached(&workload).await;
        stage.schedule_mountpoint(&pod.name_any()).await;
        stage.run_mountpoint(&pod.name_any()).await;
        let mut mounter = MountpointPod::start_at(&comm_on_node(self.kubelet.path(), &pod.uid().unwrap()));
        let volume = stage.volume_name("data");
        let target = self.kubelet.target(&workload.uid().unwrap(), &volume);
        let mut request = publish_request(&volume, &bucket_name, &target);
        let about =
            [("csi.storage.k8s.io/pod.name", "w"), ("csi.storage.k8s.io/pod.namespace", &bucket_name)];
        request.volume_context.extend(about.map(|(key, value)| (key.to_owned(), value.to_owned())));
        eventually("it is mounted", KUBELET_ASKS_FOR, || async {
            match csi.publish(request.clone()).await {
                Ok(()) => Seen::Yes(()),
                Err(refused) => Seen::NotYet(refused.to_string()),
            }
        })
        .await;
        self.kill(&mut mounter, &pod.name_any()).await;
        self.has_reported("BucketMountLost", 1).await;
        (mounter, pod.name_any())
    }

    async fn mourns_again(&self, csi: &Csi) {
        let (mounter, pod) = self.mourns(csi).await;
        let mut mounter = mounter.restart();
        self.has_reported("BucketMountRestored", 1).await;
        self.kill(&mut mounter, &pod).await;
        self.has_reported("BucketMountLost", 2).await;
    }

    /// As when the node is short of memory; kubelet reports that something happened to the pod. Without its journal the mount ends
    /// at once, instead of waiting for another mounter.
    async fn kill(&self, mounter: &mut MountpointPod, pod: &str) {
        fs::remove_file(mounter.comm.path().join(SURVIVAL).join(JOURNAL)).unwrap();
        let _ = mounter.process.kill();
        let _ = mounter.process.wait();
        for process in processes("s3-csi-mountpoint", Some(&self.stage.here.namespace)) {
            let process = i32::try_from(process).ok().and_then(Pid::from_raw).unwrap();
            let _ = kill_process(process, Signal::KILL);
        }
        let restarted =
            Patch::Merge(json!({"metadata": {"annotations": {"tests.example.com/killed": "true"}}}));
        self.stage.mountpoint_pods().patch(pod, &PatchParams::default(), &restarted).await.unwrap();
    }

    /// Waits until an Event with this reason has been published so often.
    async fn has_reported(&self, reason: &str, times: i32) {
        let events = Api::<Event>::namespaced(self.stage.here.client.clone(), &self.stage.here.namespace);
        eventually(&format!("{reason} is published {times} times"), KUBELET_ASKS_FOR, || async {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let found = all.iter().find(|event| event.reason.as_deref() == Some(reason));
            let count = found.map(|event| event.series.as_ref().map_or(1, |series| series.count));
            Seen::some((count >= Some(times)).then_some(()), format!("{count:?}\n{}", self.node.log()))
        })
        .await;
    }
}
