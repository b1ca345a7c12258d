//! The definition of attachments as the API server understands it.

use contract::attachment::{AttachmentSpec, MountpointS3PodAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{CustomResourceExt as _, ResourceExt as _};
use s3_csi_tests::claims::LIMIT;
use s3_csi_tests::controller::Controller;
use s3_csi_tests::denial::Denial;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::{Value, json};

fn object(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment", "metadata": {"name": name}, "spec": spec})
}

fn spec(stage: &Stage) -> Value {
    json!({
        "nodeName": format!("none-{}", stage.node), "persistentVolumeName": "pv", "volumeID": "h", "mountOptions": "",
        "workloadFSGroup": "", "mountpointS3PodAttachments": {"mp-1": [
            {"workloadPodUID": "u", "attachmentTime": "2024-01-15T10:30:00Z"}
        ]},
    })
}

#[tokio::test]
async fn wrong_objects_are_refused_and_name_the_field() {
    // Without a controller: it would rightly clean away what is written here.
    let _alone = s3_csi_tests::controller::none().await;
    let stage = Stage::set("definition").await;
    let strict = PatchParams::apply("tests").validation(kube::api::ValidationDirective::Strict);
    for (number, (field, value, word)) in [
        ("nodeName", Value::Null, "nodeName"),
        ("mountOptions", json!(7), "mountOptions"),
        ("mountpointS3PodAttachments", json!({"mp": [{"workloadPodUID": "u"}]}), "attachmentTime"),
        (
            "mountpointS3PodAttachments",
            json!({"mp": [{"workloadPodUID": "u", "attachmentTime": "today"}]}),
            "attachmentTime",
        ),
        ("surprise", json!("x"), "surprise"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut wrong = spec(&stage);
        wrong[field] = value;
        let name = stage.volume_name(&number.to_string());
        let refused = stage.attachments().patch(&name, &strict, &Patch::Apply(object(&name, &wrong))).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(word), "{field}: {error}");
    }
}

/// Helm installs a definition once and never updates it.
#[tokio::test]
async fn the_controller_updates_the_definition_of_an_earlier_version() {
    let _alone = s3_csi_tests::controller::none().await;
    let stage = Stage::set("outdated").await;
    let definitions = stage.all::<CustomResourceDefinition>();
    let name = MountpointS3PodAttachment::crd_name();
    let columns = async || {
        let versions = definitions.get(name).await.unwrap().spec.versions;
        versions[0].additional_printer_columns.as_ref().map_or(0, Vec::len)
    };
    let current = columns().await;
    let earlier = json!([{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]);
    let earlier = Patch::<()>::Json(serde_json::from_value(earlier).unwrap());
    definitions.patch(name, &PatchParams::default(), &earlier).await.unwrap();
    assert_eq!(columns().await, current - 1);
    drop(Controller::start(&stage.here.client, &[]).await);
    assert_eq!(columns().await, current);
}

#[tokio::test]
async fn an_update_of_the_definition_that_is_refused_is_tried_again() {
    let _alone = s3_csi_tests::controller::none().await;
    let stage = Stage::set("refused").await;
    let definitions = stage.all::<CustomResourceDefinition>();
    let name = MountpointS3PodAttachment::crd_name();
    let columns = async || {
        let versions = definitions.get(name).await.unwrap().spec.versions;
        versions[0].additional_printer_columns.as_ref().map_or(0, Vec::len)
    };
    let current = columns().await;
    let earlier = json!([{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]);
    let earlier = Patch::<()>::Json(serde_json::from_value(earlier).unwrap());
    definitions.patch(name, &PatchParams::default(), &earlier).await.unwrap();
    let rule = json!({
        "apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["customresourcedefinitions"], "resourceNames": [name],
    });
    let label = Patch::Merge(json!({"metadata": {"labels": {"tried": "yes"}}}));
    let tried = PatchParams { dry_run: true, ..PatchParams::default() };
    let attempt = async || definitions.patch(name, &tried, &label).await;
    let denial = Denial::of(&stage.here.client, format!("keep-{name}"), rule, attempt).await;
    let controller = Controller::start(&stage.here.client, &[]).await;
    controller.says("cannot update the definition of attachments").await;
    assert_eq!(columns().await, current - 1);
    denial.lift().await;
    eventually("the definition is up to date", LIMIT, || async {
        let columns = columns().await;
        Seen::some((columns == current).then_some(()), columns)
    })
    .await;
}

#[tokio::test]
async fn every_selectable_field_selects() {
    let _alone = s3_csi_tests::controller::none().await;
    let stage = Stage::set("selectable").await;
    let node = format!("none-{}", stage.node);
    let full = AttachmentSpec {
        node_name: node.clone(),
        persistent_volume_name: "pv".into(),
        volume_id: "h".into(),
        mount_options: "--read-only".into(),
        workload_fs_group: "1000".into(),
        authentication_source: "pod".into(),
        workload_namespace: "ns".into(),
        workload_service_account_name: "sa".into(),
        ..AttachmentSpec::default()
    };
    let plain = AttachmentSpec { node_name: node.clone(), ..AttachmentSpec::default() };
    for (name, spec) in [("full", full), ("plain", plain)] {
        let object = MountpointS3PodAttachment::new(&stage.volume_name(name), spec);
        stage.attachments().create(&PostParams::default(), &object).await.unwrap();
    }
    for field in [
        "persistentVolumeName=pv",
        "volumeID=h",
        "mountOptions=--read-only",
        "workloadFSGroup=1000",
        "authenticationSource=pod",
        "workloadNamespace=ns",
        "workloadServiceAccountName=sa",
    ] {
        let params = ListParams::default().fields(&format!("spec.nodeName={node},spec.{field}"));
        let found = stage.attachments().list(&params).await.unwrap();
        let names: Vec<String> = found.iter().map(MountpointS3PodAttachment::name_any).collect();
        assert_eq!(names, [stage.volume_name("full")], "{field}");
    }
}

#[tokio::test]
async fn a_write_on_old_knowledge_is_a_conflict() {
    let _alone = s3_csi_tests::controller::none().await;
    let stage = Stage::set("conflict").await;
    let name = stage.volume_name("a");
    let first = serde_json::from_value(object(&name, &spec(&stage))).unwrap();
    let created = stage.attachments().create(&PostParams::default(), &first).await.unwrap();
    let old = created.resource_version().unwrap();
    let entry = |version: &str, pod: &str| {
        let entries = json!({pod: [{"workloadPodUID": "v", "attachmentTime": "2024-01-15T10:30:00Z"}]});
        Patch::Merge(
            json!({"metadata": {"resourceVersion": version}, "spec": {"mountpointS3PodAttachments": entries}}),
        )
    };
    let params = PatchParams::default();
    stage.attachments().patch(&name, &params, &entry(&old, "mp-2")).await.unwrap();
    let refused = stage.attachments().patch(&name, &params, &entry(&old, "mp-3")).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.is_conflict()), "{refused}");
    let pods: Vec<String> =
        stage.attachments().get(&name).await.unwrap().spec.mountpoint_pods.into_keys().collect();
    assert_eq!(pods, ["mp-1", "mp-2"]);
}
