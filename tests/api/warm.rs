//! Warm Mountpoint Pods: kept ready, claimed, replaced and removed, with controllers that race, die and are upgraded.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{annotation, comm_on_node, label};
use contract::sharing::{Identity, SharingKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use node::mounts::Mounts;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::csi::publish_request;
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::{Seen, Stage, eventually, within};
use serde_json::{Value, json};
use xtask::driver;
use xtask::s3::ALICE;

use crate::chart;

const REACTS_WITHIN: Duration = Duration::from_mins(1);

/// A stage on whose node the driver has registered.
async fn stage(name: &str) -> Stage {
    let stage = Stage::set(name).await;
    let drivers = json!({"csi.volume.kubernetes.io/nodeid": r#"{"s3.csi.scality.com":"n"}"#});
    // Admission taints a new node as not ready.
    change_node(&stage, json!({"metadata": {"annotations": drivers}, "spec": {"taints": null}})).await;
    stage
}

async fn change_node(stage: &Stage, patch: Value) {
    stage.all::<Node>().patch(&stage.node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn warm_pods(stage: &Stage) -> BTreeSet<String> {
    let pods = stage.mountpoint_pods().list(&ListParams::default()).await.unwrap();
    let is_here = |pod: &&Pod| {
        pod.annotations().get(annotation::WARM_ON) == Some(&stage.node)
            && pod.metadata.deletion_timestamp.is_none()
    };
    pods.iter().filter(is_here).map(Pod::name_any).collect()
}

async fn number_of_warm_pods(stage: &Stage, number: usize) -> BTreeSet<String> {
    eventually(&format!("{number} warm pods"), REACTS_WITHIN, || async {
        let found = warm_pods(stage).await;
        Seen::some(Some(found.clone()).filter(|found| found.len() == number), format!("{found:?}"))
    })
    .await
}

/// Waits for as many, and lets them run.
async fn ready(stage: &Stage, number: usize) -> BTreeSet<String> {
    let pods = number_of_warm_pods(stage, number).await;
    for pod in &pods {
        stage.schedule_mountpoint(pod).await;
        stage.run_mountpoint(pod).await;
    }
    pods
}

/// Waits until the controller has seen that they run.
async fn known(controller: &Controller, number: usize) {
    let line = format!("s3_csi_controller_warm_mountpoint_pods{{state=\"ready\"}} {number}");
    eventually(&line, REACTS_WITHIN, || async {
        let metrics = controller.metrics();
        let warm: Vec<&str> = metrics.lines().filter(|line| line.contains("warm_")).collect();
        Seen::some(metrics.contains(&line).then_some(()), format!("{warm:?}"))
    })
    .await;
}

/// The names of all fields of an attachment, with those of its entries.
fn fields(attachment: &MountpointS3PodAttachment) -> Vec<BTreeSet<String>> {
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect();
    let mut metadata = json!(attachment.metadata);
    // Its writes are counted.
    metadata.as_object_mut().unwrap().remove("generation");
    let spec = json!(attachment.spec);
    let entries = spec["mountpointS3PodAttachments"].as_object().unwrap().values();
    let entries = entries.flat_map(|entries| entries.as_array().unwrap());
    [names(&metadata), names(&spec)].into_iter().chain(entries.map(names)).collect()
}

#[tokio::test]
async fn a_new_volume_claims_a_warm_pod_and_another_takes_its_place() {
    let _running = controller::none().await;
    let stage = stage("warm-claimed").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let [warm] = Vec::from_iter(ready(&stage, 1).await).try_into().unwrap();
    let owners = stage.mountpoint_pods().get(&warm).await.unwrap().owner_references().to_vec();
    let node = stage.all::<Node>().get(&stage.node).await.unwrap();
    assert_eq!(owners.iter().map(|owner| Some(&owner.uid)).collect::<Vec<_>>(), [node.uid().as_ref()]);
    known(&controller, 1).await;
    stage.volume("usual", &[("cache", "emptyDir")], &[]).await;
    stage.volume("instant", &[], &[]).await;

    stage.volume("late", &[], &[]).await;

    let (usual_attachment, usual) = stage.attached(&stage.workload("one", &["usual"]).await).await;
    assert_ne!(usual.name_any(), warm, "it has another shape");
    let instant = stage.workload("two", &["instant"]).await;
    let (attachment, claimed) = stage.attached(&instant).await;
    assert_eq!(claimed.name_any(), warm);
    assert_eq!(fields(&attachment), fields(&usual_attachment), "attachments do not differ");
    let (late_attachment, late) = stage.attached(&stage.workload("four", &["late"]).await).await;
    assert_ne!(late.name_any(), warm, "a volume that finds no warm pod does not wait for one");
    let keys = |pod: &Pod| -> (Vec<String>, Vec<String>) {
        (pod.labels().keys().cloned().collect(), pod.annotations().keys().cloned().collect())
    };
    let (labels, mut annotations) = keys(&claimed);
    annotations.retain(|name| name != annotation::EARLY_MOUNT);
    assert_eq!((labels, annotations), keys(&usual), "it looks like any other");
    assert_eq!(claimed.owner_references(), []);
    let early = claimed.annotations()[annotation::EARLY_MOUNT].as_str();
    assert_eq!(early, r#"{"attributes":{"bucketName":"bucket"},"mountOptions":[]}"#);
    assert_eq!(claimed.labels().get(label::WORKLOAD_UID), instant.uid().as_ref());
    assert_eq!(claimed.annotations().get(annotation::ATTACHMENT), Some(&attachment.name_any()));
    let joined = stage.workload("three", &["instant"]).await;
    assert_eq!(stage.attached(&joined).await.1.name_any(), warm);

    assert!(!number_of_warm_pods(&stage, 1).await.contains(&warm), "another one takes its place");
    eventually("the attachment says so", REACTS_WITHIN, || async {
        let conditions = stage.attachments().get(&attachment.name_any()).await.unwrap().status;
        let conditions = conditions.map(|status| status.conditions).unwrap_or_default();
        let is_told = conditions.iter().any(|condition| condition.reason == "WarmMountpointPodClaimed");
        Seen::some(is_told.then_some(()), format!("{conditions:?}"))
    })
    .await;
    let metrics = controller.metrics();
    for result in ["hit", "none_ready", "other_shape"] {
        let line = format!("s3_csi_controller_warm_claims_total{{result=\"{result}\"}} 1");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }

    assert_eq!(printed(&stage, &attachment).await, printed(&stage, &late_attachment).await);
    stage.acted().await;
    let events = [stage.reasons("two").await, stage.reasons("four").await];
    assert_eq!(events.concat(), Vec::<String>::new(), "nothing is wrong with any of them");
}

/// The row of `kubectl get`, without what differs between volumes: their names and ages.
async fn printed(stage: &Stage, attachment: &MountpointS3PodAttachment) -> Vec<Value> {
    let path = MountpointS3PodAttachment::url_path(&(), None);
    let request = http::Request::get(format!("{path}/{}", attachment.name_any()))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let mut table: Value = stage.here.client.request(request.body(Vec::new()).unwrap()).await.unwrap();
    let Value::Array(cells) = table["rows"][0]["cells"].take() else { panic!("not a table: {table}") };
    let names = [attachment.name_any(), attachment.spec.persistent_volume_name.clone()].map(Value::from);
    assert!(names.iter().all(|name| cells.contains(name)), "{cells:?}");
    let ages = table["columnDefinitions"].as_array().unwrap().iter().map(|column| column["type"] == "date");
    let own = cells.into_iter().zip(ages).filter(|(cell, is_age)| !is_age && !names.contains(cell));
    own.map(|(cell, _)| cell).collect()
}

#[tokio::test]
async fn warm_pods_leave_a_node_that_is_cordoned_or_full() {
    let _running = controller::none().await;
    let stage = stage("warm-closed").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    number_of_warm_pods(&stage, 2).await;
    change_node(&stage, json!({"spec": {"unschedulable": true}})).await;
    number_of_warm_pods(&stage, 0).await;
    change_node(&stage, json!({"spec": {"unschedulable": false}})).await;
    ready(&stage, 2).await;
    known(&controller, 2).await;

    // A volume that cannot use them finds no room beside them.
    stage.volume("big", &[("mountpointContainerResourcesRequestsMemory", "1Gi")], &[]).await;
    let (_, waiting) = stage.attached(&stage.workload("w", &["big"]).await).await;
    let full =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"});
    stage.report_mountpoint(&waiting.name_any(), json!({"phase": "Pending", "conditions": [full]})).await;
    number_of_warm_pods(&stage, 0).await;
}

#[tokio::test]
async fn warm_pods_make_room_for_a_workload_that_fits_nowhere() {
    let _running = controller::none().await;
    let stage = stage("warm-crowded").await;
    let _controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    number_of_warm_pods(&stage, 2).await;
    let pods = Api::<Pod>::namespaced(stage.here.client.clone(), &stage.here.namespace);
    let container = json!({"name": "main", "image": "none"});
    let pod = json!({"metadata": {"name": "waits"}, "spec": {"containers": [container]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available.",
    });
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    pods.patch_status("waits", &PatchParams::default(), &status).await.unwrap();
    // Other tests' controllers must not find it. This one hears of both.
    pods.delete("waits", &DeleteParams::default()).await.unwrap();
    number_of_warm_pods(&stage, 0).await;
}

/// As a controller leaves it that is killed between the claim and the attachment.
#[tokio::test]
async fn a_claimed_pod_without_an_attachment_serves_its_workload_or_ends() {
    let _running = controller::none().await;
    let stage = stage("warm-torn").await;
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    let [one, two] = Vec::from_iter(ready(&stage, 2).await).try_into().unwrap();
    drop(controller);
    stage.volume("stays", &[], &[]).await;
    stage.volume("left", &[], &[]).await;
    let stays = stage.workload("stays", &["stays"]).await;
    claim(&stage, &one, "stays", &stays.uid().unwrap()).await;
    claim(&stage, &two, "left", "c0ffee").await;

    let _controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=2"]).await;
    let (_, serving) = stage.attached(&stays).await;
    assert_eq!(serving.name_any(), one);
    stage.marked_for_unmount(&two).await;
    number_of_warm_pods(&stage, 2).await;
}

async fn claim(stage: &Stage, pod: &str, volume: &str, uid: &str) {
    let key = SharingKey {
        node: stage.node.clone(),
        volume_name: stage.volume_name(volume),
        volume_id: stage.volume_name(volume),
        mount_options: String::new(),
        fs_group: String::new(),
        identity: Identity::Driver,
    };
    let claim = json!({"metadata": {
        "labels": {label::WORKLOAD_UID: uid},
        "annotations": {
            annotation::WARM_ON: null, annotation::WARM_SHAPE: null,
            annotation::ATTACHMENT: key.attachment_name(), annotation::VOLUME_NAME: key.volume_name,
        },
        "ownerReferences": null,
    }});
    stage.mountpoint_pods().patch(pod, &PatchParams::default(), &Patch::Merge(claim)).await.unwrap();
}

#[tokio::test]
async fn warm_pods_of_another_installation_are_replaced_and_never_claimed() {
    let _running = controller::none().await;
    let stage = stage("warm-upgrade").await;
    let before = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let old = ready(&stage, 1).await;
    known(&before, 1).await;
    drop(before);
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let flags = ["--warm-mountpoint-pods=1", "--mountpoint-pod-labels={\"team\":\"a\"}"];
    let after = Controller::start(&stage.here.client, &flags).await;
    let (_, serving) = stage.attached(&workload).await;
    assert!(!old.contains(&serving.name_any()), "it was made without the label");
    eventually("the old one is replaced", REACTS_WITHIN, || async {
        let now = warm_pods(&stage).await;
        Seen::some((now.len() == 1 && now.is_disjoint(&old)).then_some(()), format!("{now:?}"))
    })
    .await;
    drop(after);
    let _off = Controller::start(&stage.here.client, &[]).await;
    number_of_warm_pods(&stage, 0).await;
}

#[tokio::test]
async fn two_controllers_claim_no_pod_twice() {
    let _running = controller::none().await;
    let stage = stage("warm-racing").await;
    let flags = ["--leader-election=false", "--warm-mountpoint-pods=3"];
    let one = Controller::start(&stage.here.client, &flags).await;
    let warm = ready(&stage, 3).await;
    let other = Controller::start(&stage.here.client, &flags).await;
    known(&one, 3).await;
    known(&other, 3).await;
    let mut workloads = Vec::new();
    for number in 0..6 {
        stage.unbound_volume(&format!("v{number}"), contract::names::DRIVER, &[], &[]).await;
        workloads.push(stage.workload(&format!("w{number}"), &[&format!("v{number}")]).await);
    }
    for number in 0..6 {
        stage.bind(&format!("v{number}")).await;
    }
    let mut serving = BTreeSet::new();
    for workload in &workloads {
        serving.insert(stage.attached(workload).await.1.name_any());
    }
    assert_eq!(serving.len(), workloads.len(), "each volume has its own pod");
    assert!(!serving.is_disjoint(&warm), "warm pods were claimed");
    // What one of them claimed while the other attached the workload to another pod serves nothing, and ends.
    eventually("every pod serves, is warm or ends", REACTS_WITHIN, || async {
        let named: BTreeSet<String> = stage
            .attachments_here()
            .await
            .into_iter()
            .flat_map(|attachment| attachment.spec.mountpoint_pods.into_keys())
            .collect();
        let pods = stage.mountpoint_pods().list(&ListParams::default()).await.unwrap();
        let is_left = |pod: &&Pod| {
            let annotations = pod.annotations();
            let volume = annotations.get(annotation::VOLUME_NAME);
            volume.is_some_and(|volume| volume.starts_with(&stage.volume_name("")))
                && !named.contains(&pod.name_any())
                && !annotations.contains_key(annotation::NEEDS_UNMOUNT)
                && pod.metadata.deletion_timestamp.is_none()
        };
        let left: Vec<String> = pods.iter().filter(is_left).map(Pod::name_any).collect();
        let warm = warm_pods(&stage).await.len();
        Seen::some((left.is_empty() && warm == 3).then_some(()), format!("{left:?}, {warm} warm"))
    })
    .await;
}

/// A values file has `off` as a boolean, `--set` as a string.
#[tokio::test]
async fn the_chart_takes_off_however_it_is_written() {
    let stage = Stage::set("warm-off").await;
    for (given, number) in [("off", "off"), ("false", "0"), ("0", "0"), ("2", "2"), ("auto", "auto")] {
        let objects = chart::objects(&stage, &[&format!("mountpointPod.warm.perNode={given}")]);
        let container = &chart::pods(&objects)[1]["containers"][0];
        assert_eq!(chart::variable(container, "WARM_MOUNTPOINT_PODS"), number);
    }
    let wrong = driver::render(&stage.here.cluster, None, &["mountpointPod.warm.perNode=true"]);
    assert!(wrong.unwrap_err().to_string().contains("perNode"));
}

/// The values `perNode` and `inCluster`. Two nodes reach the limit together, or with those of other tests.
#[tokio::test]
async fn nodes_keep_no_more_warm_pods_together_than_the_cluster_may_have() {
    let _running = controller::none().await;
    let (one, other) = (stage("warm-limit-one").await, stage("warm-limit-other").await);
    let together = async |number: usize| {
        eventually(&format!("{number} warm pods in the cluster"), REACTS_WITHIN, || async {
            let pods = one.mountpoint_pods().list(&ListParams::default()).await.unwrap();
            let is_warm = |pod: &&Pod| {
                pod.annotations().contains_key(annotation::WARM_ON)
                    && pod.metadata.deletion_timestamp.is_none()
            };
            let found: Vec<String> = pods.iter().filter(is_warm).map(Pod::name_any).collect();
            Seen::some((found.len() == number).then_some(()), format!("{found:?}"))
        })
        .await;
    };
    for (most, number) in [(3, 3), (1, 1)] {
        let most = format!("--most-warm-mountpoint-pods={most}");
        let arguments = ["--warm-mountpoint-pods=2", &most];
        let controller = Controller::start(&one.here.client, &arguments).await;
        together(number).await;
        for stage in [&one, &other] {
            stage.acted().await;
        }
        together(number).await;
        drop(controller);
    }
}

/// No kubelet asks here unless the test does.
#[tokio::test]
async fn a_claimed_pod_has_its_bucket_mounted_before_the_kubelet_asks() {
    bucket(ALICE, "early").put("early", "file", b"served").unwrap();
    let _running = controller::none().await;
    let (stage, kubelet) = (stage("warm-early").await, Kubelet::default());
    let controller = Controller::start(&stage.here.client, &["--warm-mountpoint-pods=1"]).await;
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    let [warm] = Vec::from_iter(ready(&stage, 1).await).try_into().unwrap();
    let uid = stage.mountpoint_pods().get(&warm).await.unwrap().uid().unwrap();
    let mut mounter = MountpointPod::start_at(&comm_on_node(kubelet.path(), &uid));
    known(&controller, 1).await;
    stage.volume("data", &[("bucketName", "early")], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    assert_eq!(stage.attached(&workload).await.1.name_any(), warm);
    let source = kubelet.source(&warm);
    eventually("the bucket is mounted", REACTS_WITHIN, || async {
        Seen::some((Kubelet::mounts(&source) == 1).then_some(()), node.log())
    })
    .await;

    let volume = stage.volume_name("data");
    let target = kubelet.target(&workload.uid().unwrap(), &volume);
    node.csi.publish(publish_request(&volume, "early", &target)).await.unwrap();
    assert_eq!(Kubelet::mounts(&source), 1, "it is not mounted again");
    assert_eq!(read_ahead(&source), "512", "and not the kernel's default");
    let file = target.join("file");
    assert_eq!(within("reading", REACTS_WITHIN, move || std::fs::read(file)).unwrap(), b"served");

    // And one that the workload did not wait for is unmounted as well.
    node.csi.unpublish(&volume, &target).await.unwrap();
    stage.remove("w").await;
    eventually("it is unmounted", REACTS_WITHIN, || async {
        Seen::some((Kubelet::mounts(&source) == 0).then_some(()), node.log())
    })
    .await;
    assert!(mounter.ended().success());
}

/// How many KiB the kernel reads ahead of a program in what is mounted at this path.
fn read_ahead(point: &Path) -> String {
    let (major, minor) = Mounts::default().table().unwrap().top(point).unwrap().device;
    let kib = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    kib.trim().to_owned()
}
