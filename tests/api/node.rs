//! The node service and the API server: what it waits for, which pods it trusts, how it stops.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use contract::names::{annotation, comm_on_node, label};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use s3_csi_tests::controller::{self, shared};
use s3_csi_tests::csi::{Csi, publish_request};
use s3_csi_tests::mountpoint_pod::{MountpointPod, bucket};
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};
use service::csi::volume_capability::access_mode::Mode;
use service::csi::volume_capability::{AccessMode, AccessType, BlockVolume};
use tonic::Code;
use xtask::s3::ALICE;

const LIMIT: Duration = Duration::from_mins(3);

async fn begin(test: &str) -> (Stage, Kubelet, NodeProgram) {
    let (stage, kubelet) = (Stage::set(test).await, Kubelet::default());
    let node = NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
    (stage, kubelet, node)
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_right_code() {
    let (_stage, kubelet, node) = begin("node-refuses").await;
    let good = || publish_request("handle", "bucket", &kubelet.target("uid", "pv"));
    let with_mode = |mode: Mode| {
        let mut request = good();
        request.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: mode.into() });
        request
    };
    let mut cases = vec![(with_mode(Mode::MultiNodeSingleWriter), "MULTI_NODE_SINGLE_WRITER")];
    cases.push((with_mode(Mode::Unknown), "UNKNOWN"));
    let mut changed = |change: &dyn Fn(&mut service::csi::NodePublishVolumeRequest), words| {
        let mut request = good();
        change(&mut request);
        cases.push((request, words));
    };
    changed(&|request| request.volume_id.clear(), "Volume ID not provided");
    changed(&|request| request.target_path.clear(), "Target path not provided");
    changed(&|request| request.target_path = "/etc".into(), "invalid target path \"/etc\": expected");
    changed(&|request| request.volume_capability = None, "Volume capability not provided");
    changed(&|request| request.volume_context.clear(), "bucketName");
    changed(
        &|request| drop(request.volume_context.insert("bucketName".into(), "my bucket".into())),
        "invalid `bucketName` \"my bucket\"",
    );
    changed(
        &|request| {
            let capability = request.volume_capability.as_mut().unwrap();
            let Some(AccessType::Mount(mount)) = &mut capability.access_type else { panic!() };
            mount.mount_flags.push("uid=abc".into());
        },
        "invalid mount option `uid` \"abc\": it must be a number",
    );
    changed(
        &|request| {
            let block = AccessType::Block(BlockVolume {});
            request.volume_capability.as_mut().unwrap().access_type = Some(block);
        },
        "block volumes are not supported",
    );
    changed(
        &|request| drop(request.volume_context.insert("authenticationSource".into(), "magic".into())),
        "magic",
    );
    for (request, words) in cases {
        let refused = node.csi.publish(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words), "{words}: {refused}");
    }
    let nowhere = kubelet.path().join("pods/../../etc");
    assert_eq!(node.csi.unpublish("handle", &nowhere).await.unwrap_err().code(), Code::InvalidArgument);
    let missing = node.csi.stats("handle", &kubelet.target("uid", "pv")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(node.metrics().contains("s3_csi_node_publish_seconds_count{code=\"InvalidArgument\"}"));
}

#[tokio::test]
async fn a_publish_that_waits_ends_with_what_it_waited_for_and_a_second_one_is_aborted() {
    let (_stage, kubelet, node) = begin("node-waits").await;
    let request = publish_request("handle", "bucket", &kubelet.target("uid", "pv"));
    let (one, other) = tokio::join!(node.csi.publish(request.clone()), node.csi.publish(request));
    let (one, other) = (one.unwrap_err(), other.unwrap_err());
    let (aborted, late) = if one.code() == Code::Aborted { (one, other) } else { (other, one) };
    assert_eq!(aborted.code(), Code::Aborted);
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("no attachment lists this workload"), "{late}");
}

#[tokio::test]
async fn a_mountpoint_pod_that_cannot_start_is_quoted() {
    let (stage, kubelet, node) = begin("node-quotes").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    let volume = stage.volume_name("data");
    let request = publish_request(&volume, "bucket", &kubelet.target(&workload.uid().unwrap(), &volume));
    let full = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes have room"});
    stage.report_mountpoint(&pod.name_any(), json!({"phase": "Pending", "conditions": [full]})).await;
    let refused = node.csi.publish(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("Unschedulable: 0/1 nodes have room"), "{refused}");

    stage.schedule_mountpoint(&pod.name_any()).await;
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image: mounter:9"}});
    let container = json!({"name": "mountpoint", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waiting});
    let status = json!({"phase": "Pending", "conditions": [], "containerStatuses": [container]});
    stage.report_mountpoint(&pod.name_any(), status).await;
    let refused = node.csi.publish(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let reason = format!("{} cannot start: ImagePullBackOff: no such image: mounter:9", pod.name_any());
    assert!(refused.message().contains(&reason), "{refused}");
}

/// Makes a Mountpoint Pod of this name, and an attachment of this name that assigns the workload `uid` to it.
async fn assign(stage: &Stage, name: &str, labels: &Value, annotations: &Value) -> Pod {
    let container = json!({"name": "main", "image": "none"});
    let pod = json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"nodeName": stage.node, "containers": [container], "automountServiceAccountToken": false},
    });
    let pods = stage.mountpoint_pods();
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let workload = json!({"workloadPodUID": "uid", "attachmentTime": "2026-01-01T00:00:00Z"});
    let attachment = json!({
        "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment", "metadata": {"name": name},
        "spec": {
            "nodeName": stage.node, "persistentVolumeName": name, "volumeID": name, "mountOptions": "",
            "workloadFSGroup": "", "mountpointS3PodAttachments": {name: [workload]},
        },
    });
    let attachment = serde_json::from_value(attachment).unwrap();
    stage.attachments().create(&PostParams::default(), &attachment).await.unwrap();
    pod
}

/// As the reference driver made it. To the node, an emptied Secret looks like none, and its volume must not get the driver's
/// keys instead.
#[tokio::test]
async fn a_mountpoint_pod_without_a_record_gets_no_keys_of_the_driver() {
    let _none = controller::none().await;
    bucket(ALICE, "node-unrecorded").put("node-unrecorded", "file", b"content").unwrap();
    let (stage, kubelet, node) = begin("node-unrecorded").await;
    let name = stage.volume_name("data");
    let labels = json!({label::DRIVER_VERSION: "1"});
    let pod = assign(&stage, &name, &labels, &json!({annotation::VOLUME_NAME: name})).await;
    let comm = comm_on_node(kubelet.path(), &pod.uid().unwrap());
    let mounter = MountpointPod::start_at(&comm);
    mounter.listening();
    stage.run_mountpoint(&name).await;
    let request = publish_request(&name, "node-unrecorded", &kubelet.target("uid", &name));
    let written = comm.join("credentials").join(&name);
    for (record, words) in [
        (None, Some("no annotation `s3.csi.scality.com/authentication-source` yet")),
        (Some("secret"), Some("nodePublishSecretRef")),
        (Some("driver"), None),
    ] {
        let patch = json!({"metadata": {"annotations": {annotation::AUTHENTICATION_SOURCE: record}}});
        let params = PatchParams::default();
        stage.mountpoint_pods().patch(&name, &params, &Patch::Merge(patch)).await.unwrap();
        eventually(&format!("{record:?} has its effect"), LIMIT, || async {
            assert!(words.is_none() || !written.exists(), "the driver's keys were written");
            let outcome = node.csi.publish(request.clone()).await;
            let is_so = match (&outcome, words) {
                (Ok(()), None) => true,
                (Err(refused), Some(words)) => refused.message().contains(words),
                _ => false,
            };
            Seen::some(is_so.then_some(()), format!("{outcome:?}"))
        })
        .await;
    }
    assert!(written.exists());
    node.csi.unpublish(&name, &kubelet.target("uid", &name)).await.unwrap();
}

/// The right to write attachments must not be enough to have descriptors and keys sent to any pod.
#[tokio::test]
async fn only_a_pod_of_the_driver_for_this_volume_is_trusted() {
    // A controller would remove the attachment of a workload that does not exist.
    let _none = controller::none().await;
    let (stage, kubelet, node) = begin("node-trusts").await;
    for (name, labels, annotations, words) in [
        ("stranger", json!({}), json!({}), "does not have the driver's labels"),
        (
            "others",
            json!({label::DRIVER_VERSION: "1"}),
            json!({annotation::VOLUME_NAME: "another"}),
            "belongs to another volume",
        ),
    ] {
        let name = stage.volume_name(name);
        assign(&stage, &name, &labels, &annotations).await;
        let request = publish_request(&name, "bucket", &kubelet.target("uid", &name));
        let refused = node.csi.publish(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(words), "{refused}");
    }
}

/// Another one will come, and under another name.
#[tokio::test]
async fn a_mountpoint_pod_that_has_ended_is_named() {
    let _none = controller::none().await;
    let (stage, kubelet, node) = begin("node-ended").await;
    let name = stage.volume_name("data");
    assign(&stage, &name, &json!({label::DRIVER_VERSION: "1"}), &json!({annotation::VOLUME_NAME: name}))
        .await;
    stage.report_mountpoint(&name, json!({"phase": "Succeeded"})).await;
    let request = publish_request(&name, "bucket", &kubelet.target("uid", &name));
    eventually("the publish says that the pod has ended", LIMIT, || async {
        let refused = node.csi.publish(request.clone()).await.unwrap_err();
        let is_named = refused.message().contains("has ended; waiting for its replacement");
        Seen::some((is_named && refused.code() == Code::DeadlineExceeded).then_some(()), refused)
    })
    .await;
}

#[tokio::test]
async fn a_stop_lets_running_calls_finish_and_takes_no_new_ones() {
    let (stage, kubelet, node) = begin("node-stops").await;
    let _controller = shared(&stage.here.client).await;
    stage.volume("data", &[], &[]).await;
    let workload = stage.workload("w", &["data"]).await;
    let (_, pod) = stage.attached(&workload).await;
    stage.schedule_mountpoint(&pod.name_any()).await;
    let volume = stage.volume_name("data");
    let request = publish_request(&volume, "bucket", &kubelet.target(&workload.uid().unwrap(), &volume));
    // Of two at once, one gets ABORTED; then the other is running.
    let call = || {
        let (csi, request) = (node.csi.clone(), request.clone());
        tokio::spawn(async move { csi.publish(request).await })
    };
    let (mut one, mut other) = (call(), call());
    let (refused, running) = tokio::select! {
        refused = &mut one => (refused, other),
        refused = &mut other => (refused, one),
    };
    assert_eq!(refused.unwrap().unwrap_err().code(), Code::Aborted);
    node.terminate();
    node.says("stopping").await;
    eventually("new calls are refused", LIMIT, || async {
        match Csi::connect(&kubelet.csi_socket()).await {
            Err(_) => Seen::Yes(()),
            Ok(_) => Seen::NotYet("connected".to_owned()),
        }
    })
    .await;
    assert!(!running.is_finished());
    let status = json!({"phase": "Failed", "reason": "Evicted", "message": "the node was short of memory"});
    stage.report_mountpoint(&pod.name_any(), status).await;
    let finished = running.await.unwrap().unwrap_err();
    assert!(finished.message().contains("Evicted: the node was short of memory"), "{finished}");
    // No second signal: the program may have removed its signal handlers already.
    assert!(node.ended().success());
}

#[tokio::test]
async fn the_socket_is_private_and_a_stale_one_is_replaced() {
    let (stage, kubelet, node) = begin("node-socket").await;
    for socket in [kubelet.csi_socket(), kubelet.registration_socket()] {
        assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    }
    drop(node);
    assert!(kubelet.csi_socket().exists(), "it was killed");
    NodeProgram::start(&stage.here.client, &stage.node, &kubelet, &[]).await;
}
