//! Headroom that is reserved for Mountpoint Pods before their workload is scheduled.

mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use contract::names::{DRIVER, HEADROOM_GATE, headroom_pod, label};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::CONTROLLER;
use s3_csi_tests::controller::{self, Controller};
use s3_csi_tests::right::Right;
use s3_csi_tests::{Seen, Stage, chart, eventually};
use serde_json::{Value, json};

use crate::chart::{find, objects, pods, variable};

const REACTS_WITHIN: Duration = Duration::from_mins(1);
const ON: &str = "mountpointPod.reserveHeadroom=true";
const FLAGS: &[&str] = &[
    "--mountpoint-preempting-priority-class-name=mount-s3-preempting",
    "--mountpoint-headroom-priority-class-name=mount-s3-headroom",
];
const OTHER_GATE: &str = "example.com/other";

/// A controller that reserves headroom, with the rights that it then has.
async fn reserving(stage: &Stage) -> Controller {
    classes(stage);
    let account = CONTROLLER.variant(&stage.here.client, "headroom", &CONTROLLER.roles(&[ON])).await;
    let controller = Controller::launch_as(&account, &stage.here.client, FLAGS).await;
    controller.says("became leader").await;
    controller
}

/// The priority classes that the chart then makes.
fn classes(stage: &Stage) {
    let mut all = chart::rendered(&stage.here.cluster, &[ON]);
    all.retain(|object| object["kind"] == "PriorityClass");
    chart::apply(&stage.here.cluster, &all, &[]);
}

/// A workload that is not scheduled and asks for headroom.
async fn gated(stage: &Stage, name: &str, claims: &[&str]) -> Pod {
    let gates = json!([{"name": HEADROOM_GATE}, {"name": OTHER_GATE}]);
    stage.workload_with(name, claims, json!({"nodeName": null, "schedulingGates": gates})).await
}

async fn gates(stage: &Stage, name: &str) -> Vec<String> {
    let spec = stage.here.pods().get(name).await.unwrap().spec.unwrap();
    spec.scheduling_gates.into_iter().flatten().map(|gate| gate.name).collect()
}

async fn is_ungated(stage: &Stage, name: &str) {
    eventually(&format!("{name} is ungated"), REACTS_WITHIN, || async {
        let gates = gates(stage, name).await;
        Seen::some((gates == [OTHER_GATE]).then_some(()), format!("{gates:?}"))
    })
    .await;
}

async fn headroom_pods(stage: &Stage, workload: &Pod) -> Vec<Pod> {
    let selector = format!("{}={}", label::HEADROOM_FOR_POD, workload.uid().unwrap());
    stage.mountpoint_pods().list(&ListParams::default().labels(&selector)).await.unwrap().items
}

async fn number_of_headroom_pods(stage: &Stage, workload: &Pod, number: usize) {
    eventually(&format!("{number} headroom pods"), REACTS_WITHIN, || async {
        let found = headroom_pods(stage, workload).await.len();
        Seen::some((found == number).then_some(()), format!("{found}"))
    })
    .await;
}

async fn is_unlabelled(stage: &Stage, name: &str) {
    eventually("the label is removed", REACTS_WITHIN, || async {
        let labels = stage.here.pods().get(name).await.unwrap().labels().clone();
        Seen::some(labels.is_empty().then_some(()), format!("{labels:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_workload_that_asks_is_scheduled_after_headroom_is_reserved() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom").await;
    let _controller = reserving(&stage).await;
    stage.volume("one", &[("mountpointContainerResourcesRequestsMemory", "96Mi")], &[]).await;
    stage.volume("two", &[], &[]).await;
    stage.unbound_volume("theirs", "other.csi", &[], &[]).await;
    stage.bind("theirs").await;
    let workload = gated(&stage, "w", &["one", "two", "theirs"]).await;
    is_ungated(&stage, "w").await;
    let uid = workload.uid().unwrap();
    assert_eq!(stage.here.pods().get("w").await.unwrap().labels()[label::HEADROOM_FOR_WORKLOAD], uid);
    let names: BTreeSet<String> = headroom_pods(&stage, &workload).await.iter().map(Pod::name_any).collect();
    let of = |volume: &str| headroom_pod(&uid, &stage.volume_name(volume));
    assert_eq!(names, BTreeSet::from([of("one"), of("two")]));
    let spec = stage.mountpoint_pods().get(&of("one")).await.unwrap().spec.unwrap();
    assert_eq!((spec.priority, spec.preemption_policy.as_deref()), (Some(-10), Some("Never")));
    assert_eq!(json!(spec.containers[0].resources)["requests"], json!({"memory": "96Mi"}));

    // The test is the scheduler, and schedules nothing that has a gate.
    let none = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    stage.here.pods().patch("w", &PatchParams::default(), &none).await.unwrap();
    stage.schedule("w").await;
    let volume = stage.volume_name("one");
    let (_, mountpoint) = stage.attached_volume(&workload, Some(&volume)).await;
    let spec = mountpoint.spec.as_ref().unwrap();
    assert_eq!(spec.priority_class_name.as_deref(), Some("mount-s3-preempting"));
    assert_eq!(spec.preemption_policy.as_deref(), Some("PreemptLowerPriority"));
    assert_eq!(headroom_pods(&stage, &workload).await.len(), 2, "the workload does not run yet");

    // The headroom pod of a volume makes room, if the scheduler finds none for its Mountpoint Pod.
    let full = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient memory.",
    });
    stage.report_mountpoint(&mountpoint.name_any(), json!({"phase": "Pending", "conditions": [full]})).await;
    stage.mountpoint_gone(&of("one")).await;
    assert_eq!(headroom_pods(&stage, &workload).await.len(), 1);
    stage.report("w", "Running").await;
    number_of_headroom_pods(&stage, &workload, 0).await;
    is_unlabelled(&stage, "w").await;
}

#[tokio::test]
async fn claims_that_can_still_be_bound_keep_the_gate() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom-claims").await;
    let _controller = reserving(&stage).await;
    let class = json!({"metadata": {"name": stage.volume_name("late")}, "provisioner": "other.csi",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let class = serde_json::from_value(class).unwrap();
    stage.all::<StorageClass>().create(&PostParams::default(), &class).await.unwrap();
    let late = json!({"metadata": {"name": "late"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": stage.volume_name("late"),
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claims = Api::<PersistentVolumeClaim>::namespaced(stage.here.client.clone(), &stage.here.namespace);
    claims.create(&PostParams::default(), &serde_json::from_value(late).unwrap()).await.unwrap();
    stage.volume("bound", &[], &[]).await;
    stage.unbound_volume("free", DRIVER, &[], &[]).await;
    let workload = gated(&stage, "w", &["late", "bound", "free"]).await;
    number_of_headroom_pods(&stage, &workload, 1).await;
    stage.acted().await;
    assert_eq!(gates(&stage, "w").await, [HEADROOM_GATE, OTHER_GATE]);
    stage.bind("free").await;
    is_ungated(&stage, "w").await;
    assert_eq!(headroom_pods(&stage, &workload).await.len(), 2, "none for the claim that is bound later");
    stage.remove("w").await;
    number_of_headroom_pods(&stage, &workload, 0).await;
}

#[tokio::test]
async fn what_a_dead_controller_reserved_is_removed_when_it_is_not_needed() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom-killed").await;
    let first = reserving(&stage).await;
    stage.volume("data", &[], &[]).await;
    stage.unbound_volume("free", DRIVER, &[], &[]).await;
    let deleted = gated(&stage, "deleted", &["data", "free"]).await;
    let kept = gated(&stage, "kept", &["data", "free"]).await;
    let run = gated(&stage, "run", &["data"]).await;
    for workload in [&deleted, &kept, &run] {
        number_of_headroom_pods(&stage, workload, 1).await;
    }
    is_ungated(&stage, "run").await;
    drop(first);
    stage.remove("deleted").await;
    let none = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    stage.here.pods().patch("run", &PatchParams::default(), &none).await.unwrap();
    stage.schedule("run").await;
    stage.report("run", "Succeeded").await;
    let second = reserving(&stage).await;
    number_of_headroom_pods(&stage, &deleted, 0).await;
    number_of_headroom_pods(&stage, &run, 0).await;
    is_unlabelled(&stage, "run").await;
    stage.acted().await;
    assert_eq!(headroom_pods(&stage, &kept).await.len(), 1);

    // Turned off, nothing is reserved any more, and the gate is not removed.
    drop(second);
    let _off = Controller::start(&stage.here.client, &[]).await;
    number_of_headroom_pods(&stage, &kept, 0).await;
    stage.bind("free").await;
    stage.acted().await;
    assert_eq!(gates(&stage, "kept").await, [HEADROOM_GATE, OTHER_GATE]);
}

#[tokio::test]
async fn the_rights_to_reserve_headroom_are_needed_and_given_only_with_it() {
    let _running = controller::none().await;
    let stage = Stage::set("headroom-rights").await;
    classes(&stage);
    let everywhere = |values: &[&str]| -> BTreeSet<Right> {
        let roles = CONTROLLER.roles(values).into_iter().filter(|role| role.namespace.is_none());
        roles.flat_map(|role| role.rights).collect()
    };
    let only = "provisioning.enabled=false";
    let added: Vec<Right> = everywhere(&[only, ON]).difference(&everywhere(&[only])).cloned().collect();
    let text = |right: &Right| format!("{} {}", right.verb, right.resource);
    let names: Vec<String> = added.iter().map(text).collect();
    assert_eq!(names, ["get persistentvolumeclaims", "patch pods", "get storageclasses"]);
    for (number, right) in added.iter().enumerate() {
        let mut roles = CONTROLLER.roles(&[only, ON]);
        for role in roles.iter_mut().filter(|role| role.namespace.is_none()) {
            role.rights.remove(right);
        }
        let account = CONTROLLER.variant(&stage.here.client, &format!("no-headroom-{number}"), &roles).await;
        let flags = [FLAGS, &["--provisioning=off", "--leader-election=false"]].concat();
        let controller = Controller::launch_as(&account, &stage.here.client, &flags).await;
        let (name, claim) = (format!("w{number}"), format!("c{number}"));
        let class = json!({"metadata": {"name": claim}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        }});
        let claims =
            Api::<PersistentVolumeClaim>::namespaced(stage.here.client.clone(), &stage.here.namespace);
        claims.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
        stage.volume(&format!("v{number}"), &[], &[]).await;
        gated(&stage, &name, &[&claim, &format!("v{number}")]).await;
        eventually(&right.refusal(), REACTS_WITHIN, || async {
            let log = controller.log().replace('\\', "");
            Seen::some(log.contains(&right.refusal()).then_some(()), xtask::command::tail(&log))
        })
        .await;
        drop(controller);
        stage.remove(&name).await;
    }
}

#[tokio::test]
async fn values_of_both_reference_charts_reserve_headroom() {
    let stage = Stage::set("headroom-values").await;
    let classes = |objects: &[Value]| -> Vec<String> {
        let classes = objects.iter().filter(|one| one["kind"] == "PriorityClass");
        classes.map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let named = "mountpointPod.headroomPriorityClassName=low,mountpointPod.preemptingPriorityClassName=high";
    let image = "mountpointPod.headroomImage.repository=pause,mountpointPod.headroomImage.tag=v3";
    let off = objects(&stage, &[named, image]);
    assert_eq!(classes(&off), ["mount-s3-critical"], "names alone do not turn it on");
    let of = |objects: &[Value], name: &str| variable(&pods(objects)[1]["containers"][0], name).clone();
    assert_eq!(of(&off, "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME"), Value::Null);
    for on in [ON, "experimental.reserveHeadroomForMountpointPods=true"] {
        let objects = objects(&stage, &[on, named, image]);
        assert_eq!(find(&objects, "PriorityClass", "low")["value"], -10);
        assert_eq!(find(&objects, "PriorityClass", "high")["value"], 999_999_999);
        assert_eq!(of(&objects, "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME"), "low");
        assert_eq!(of(&objects, "MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME"), "high");
        assert!(of(&objects, "MOUNTPOINT_HEADROOM_IMAGE").as_str().unwrap().ends_with("pause:v3"));
        let policy = find(&objects, "ValidatingAdmissionPolicy", "s3-csi-mountpoint-priority");
        assert!(policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap().contains("\"high\""));
    }

    let theirs = &[
        "experimental.reserveHeadroomForMountpointPods=true,image.containerRegistry=s3-csi.test/mirror",
        // Amazon's chart has one text for the image, and uses it as it is.
        "experimental.headroomPodImage=s3-csi.test/pause:3.10",
        "experimental.headroomPodLabels.team=theirs,experimental.headroomPodLabels.tier=headroom",
    ][..];
    let ours = &[image, "mountpointPod.headroomPodLabels.team=ours"][..];
    for (values, image, team) in [
        (theirs.to_vec(), "s3-csi.test/pause:3.10", "theirs"),
        ([theirs, ours].concat(), "s3-csi.test/mirror/pause:v3", "ours"),
    ] {
        let objects = objects(&stage, &values);
        assert_eq!(of(&objects, "MOUNTPOINT_HEADROOM_IMAGE"), image);
        let labels = of(&objects, "MOUNTPOINT_HEADROOM_POD_LABELS");
        let labels: Value = serde_json::from_str(labels.as_str().unwrap()).unwrap();
        assert_eq!(labels, json!({"team": team, "tier": "headroom"}));
    }
}
