//! A claimed pod is what would have been created.

use std::collections::BTreeSet;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{annotation, label};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource as _, ResourceExt as _};
use s3_csi_tests::Stage;
use s3_csi_tests::controller::{self, Controller};
use serde_json::{Value, json};

use super::{known, number_of_warm_pods, ready, runs, says_that_it_was_claimed, stage};

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
    runs(&stage, &usual).await;
    let instant = stage.workload("two", &["instant"]).await;
    let (attachment, claimed) = stage.attached(&instant).await;
    assert_eq!(claimed.name_any(), warm);
    assert_eq!(fields(&attachment), fields(&usual_attachment), "attachments do not differ");
    let (late_attachment, late) = stage.attached(&stage.workload("four", &["late"]).await).await;
    assert_ne!(late.name_any(), warm, "a volume that finds no warm pod does not wait for one");
    runs(&stage, &late).await;
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
    says_that_it_was_claimed(&stage, &attachment).await;
    let metrics = controller.metrics();
    for result in ["hit", "being_replaced", "other_shape"] {
        let line = format!("s3_csi_controller_warm_claims_total{{result=\"{result}\"}} 1");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }

    assert_eq!(printed(&stage, &attachment).await, printed(&stage, &late_attachment).await);
    stage.acted().await;
    let events = [stage.reasons("two").await, stage.reasons("four").await];
    assert_eq!(events.concat(), Vec::<String>::new(), "nothing is wrong with any of them");
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
