//! The CSI services of controller and node as csi-sanity sees them, with buckets that are really made and mounted.

use std::path::Path;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{annotation, comm_on_node, label};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::{MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE};
use s3_csi_tests::claims::Tenant;
use s3_csi_tests::controller::{self, Controller, LEASE};
use s3_csi_tests::mountpoint_pod::MountpointPod;
use s3_csi_tests::node::{Kubelet, NodeProgram};
use s3_csi_tests::sanity;
use serde_json::json;
use xtask::s3::ALICE;

const NODE: &str = "sanity";
const WORKLOAD: &str = "0b8de1f7-5d0e-4b43-8f4c-3b1c2f0d9a77";
const VOLUME: &str = "volume";
/// The node waits for an attachment much longer.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the services do not offer, and say so, by the capability that each test needs.
const SKIPPED: &[(&str, &[&str])] = &[
    // PUBLISH_UNPUBLISH_VOLUME
    (
        "Controller Service [Controller Server] ControllerPublishVolume",
        &[
            "should fail when no node id is provided",
            "should fail when no volume capability is provided",
            "should fail when no volume id is provided",
            "should fail when publishing more volumes than the node max attach limit",
            "should fail when the node does not exist",
            "should fail when the volume does not exist",
            "should fail when the volume is already published but is incompatible",
        ],
    ),
    (
        "Controller Service [Controller Server] ControllerUnpublishVolume",
        &["should fail when no volume id is provided"],
    ),
    ("Controller Service [Controller Server] volume lifecycle", &["should be idempotent", "should work"]),
    // CREATE_DELETE_SNAPSHOT
    (
        "Controller Service [Controller Server] CreateVolume",
        &[
            "should create volume from an existing source snapshot",
            "should fail when the volume source snapshot is not found",
        ],
    ),
    (
        "CreateSnapshot [Controller Server]",
        &[
            "should fail when no name is provided",
            "should fail when no source volume id is provided",
            "should fail when requesting to create a snapshot with already existing name and different source volume ID",
            "should succeed when creating a snapshot with accessibility requirements",
            "should succeed when creating snapshot with maximum-length name",
            "should succeed when requesting to create a snapshot with already existing name and same source volume ID",
        ],
    ),
    (
        "DeleteSnapshot [Controller Server]",
        &[
            "should fail when no snapshot id is provided",
            "should return appropriate values (no optional values added)",
            "should succeed when an invalid snapshot id is used",
        ],
    ),
    // CLONE_VOLUME
    (
        "Controller Service [Controller Server] CreateVolume",
        &[
            "should create volume from an existing source volume",
            "should fail when the volume source volume is not found",
        ],
    ),
    // MODIFY_VOLUME
    (
        "Controller Service [Controller Server] CreateVolume",
        &[
            "should create volume with a volume attribute class",
            "should not create volume with an invalid volume attribute class",
        ],
    ),
    (
        "ModifyVolume [Controller Server]",
        &[
            "should fail if no volume id is given",
            "should fail if specified mutable parameters are not supported by the volume",
            "should fail if volume does not exist",
            "should fail to modify a volume created with a volume attribute class if new mutable parameters are not supported by volume",
            "should modify a volume created with a volume attribute class",
            "should modify a volume created without a volume attribute class",
        ],
    ),
    // GET_CAPACITY
    (
        "Controller Service [Controller Server] GetCapacity",
        &["should return capacity (no optional values added)"],
    ),
    // LIST_VOLUMES
    (
        "Controller Service [Controller Server] ListVolumes",
        &[
            "check the presence of new volumes and absence of deleted ones in the volume list",
            "pagination should detect volumes added between pages and accept tokens when the last volume from a page is deleted",
            "should fail when an invalid starting_token is passed",
            "should return appropriate values (no optional values added)",
        ],
    ),
    // GET_VOLUME, VOLUME_CONDITION
    (
        "ControllerGetVolumeHealth [Controller Server]",
        &["should fail when no volume id is provided", "should return health for a valid volume"],
    ),
    ("ControllerListVolumeHealth [Controller Server]", &["should return appropriate response"]),
    // LIST_SNAPSHOTS, GET_SNAPSHOT
    (
        "GetSnapshot [Controller Server]",
        &[
            "should return an error",
            "should return an error when the specified snapshot id does not exist",
            "should return snapshot that match the specified snapshot id",
        ],
    ),
    (
        "ListSnapshots [Controller Server]",
        &[
            "check the presence of new snapshots in the snapshot list",
            "should return appropriate values (no optional values added)",
            "should return empty when the specified snapshot id does not exist",
            "should return empty when the specified source volume id does not exist",
            "should return next token when a limited number of entries are requested",
            "should return snapshots that match the specified snapshot id",
            "should return snapshots that match the specified source volume id",
        ],
    ),
    // EXPAND_VOLUME
    (
        "ExpandVolume [Controller Server]",
        &["should fail if no capacity range is given", "should fail if no volume id is given", "should work"],
    ),
    // STAGE_UNSTAGE_VOLUME
    (
        "Node Service NodeStageVolume",
        &[
            "should fail when no staging target path is provided",
            "should fail when no volume capability is provided",
            "should fail when no volume id is provided",
        ],
    ),
    (
        "Node Service NodeUnstageVolume",
        &["should fail when no staging target path is provided", "should fail when no volume id is provided"],
    ),
    // EXPAND_VOLUME, of the node
    (
        "Node Service NodeExpandVolume",
        &[
            "should fail when no volume id is provided",
            "should fail when no volume path is provided",
            "should fail when volume is not found",
            "should work if node-expand is called after node-publish",
        ],
    ),
    // the node's calls for the health of volumes, newer than what we serve
    ("Node Service NodeGetStorageHealth", &["should return appropriate response"]),
    (
        "Node Service NodeGetVolumeHealth",
        &["should fail when no volume id is provided", "should return health for a valid volume"],
    ),
    // the group controller service
    (
        "GroupController Service [GroupController Server] GroupControllerGetCapabilities",
        &["should return appropriate capabilities"],
    ),
    (
        "GroupController Service [GroupController VolumeGroupSnapshots] CreateVolumeGroupSnapshot",
        &["should fail when no name is provided"],
    ),
    (
        "GroupController Service [GroupController VolumeGroupSnapshots] DeleteVolumeGroupSnapshot",
        &["should fail when no volume id is provided", "should succeed when an invalid volume id is used"],
    ),
    (
        "GroupController Service [GroupController VolumeGroupSnapshots] GetVolumeGroupSnapshot",
        &["should fail when an invalid volume id is used", "should fail when no volume id is provided"],
    ),
];

/// What the Pod Reconciler and kubelet would do: for each new bucket an attachment that names the workload, and a
/// Mountpoint Pod that runs. csi-sanity has no workloads that they could know of.
async fn play(tenant: &Tenant, kubelet: &Kubelet) {
    let attachments = Api::<MountpointS3PodAttachment>::all(tenant.here.client.clone());
    let pods = Api::<Pod>::namespaced(tenant.here.client.clone(), MOUNTPOINT_NAMESPACE);
    let post = PostParams::default();
    let (mut known, mut running) = (tenant.buckets(), Vec::new());
    loop {
        for bucket in tenant.buckets() {
            if !known.insert(bucket.clone()) {
                continue;
            }
            let pod = json!({
                "metadata": {
                    "generateName": "mp-sanity-", "labels": {label::DRIVER_VERSION: "1"},
                    "annotations": {annotation::VOLUME_NAME: VOLUME, annotation::AUTHENTICATION_SOURCE: "secret"},
                },
                "spec": {
                    "nodeName": NODE, "containers": [{"name": "mountpoint", "image": "none"}],
                    "automountServiceAccountToken": false,
                },
            });
            let pod = pods.create(&post, &serde_json::from_value(pod).unwrap()).await.unwrap();
            running.push(MountpointPod::start_at(&comm_on_node(kubelet.path(), &pod.uid().unwrap())));
            let workload = json!({"workloadPodUID": WORKLOAD, "attachmentTime": "2026-01-01T00:00:00Z"});
            let attachment = json!({
                "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
                "metadata": {"name": format!("sanity-{bucket}")},
                "spec": {
                    "nodeName": NODE, "persistentVolumeName": VOLUME, "volumeID": bucket, "mountOptions": "",
                    "workloadFSGroup": "", "mountpointS3PodAttachments": {pod.name_any(): [workload]},
                },
            });
            attachments.create(&post, &serde_json::from_value(attachment).unwrap()).await.unwrap();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// As if another controller led: ours serves its socket, and leaves attachments alone.
async fn let_another_lead(tenant: &Tenant) -> Api<Lease> {
    let leases = Api::<Lease>::namespaced(tenant.here.client.clone(), RELEASE_NAMESPACE);
    let _ = leases.delete(LEASE, &DeleteParams::default()).await;
    let now = jiff::Timestamp::now();
    let lease = json!({
        "metadata": {"name": LEASE},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600, "acquireTime": format!("{now:.6}"),
                 "renewTime": format!("{now:.6}"), "leaseTransitions": 0},
    });
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    leases
}

#[tokio::test]
async fn both_services_pass_on_real_buckets_and_mounts() {
    let _running = controller::none().await;
    let tenant = Tenant::set("sanity", ALICE).await;
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    Api::<Node>::all(tenant.here.client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let leases = let_another_lead(&tenant).await;
    let socket = "/run/csi-controller.sock";
    let arguments = ["--provisioning=off", &format!("--csi-socket={socket}")];
    let controller = Controller::launch(&tenant.here.client, &arguments).await;
    controller.says("caches filled").await;
    let kubelet = Kubelet::default();
    let node = NodeProgram::start(&tenant.here.client, NODE, &kubelet, &["--registration=off"]).await;
    let before = tenant.buckets();
    let target = kubelet.target(WORKLOAD, VOLUME);
    let (csi, folder) = (kubelet.csi_socket(), target.parent().unwrap().to_owned());
    let testing = tokio::task::spawn_blocking(move || sanity::run(&csi, Path::new(socket), &folder, ALICE));
    let report = tokio::select! {
        report = testing => report.unwrap(),
        () = play(&tenant, &kubelet) => unreachable!("it plays until the end"),
    };
    leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
    assert_eq!(report.failed, [""; 0]);
    let expected =
        SKIPPED.iter().flat_map(|(what, tests)| tests.iter().map(move |test| format!("{what} {test}")));
    assert_eq!(report.skipped, expected.collect(), "what is skipped is what we do not offer");
    assert_eq!(tenant.buckets(), before, "every volume was deleted");
    assert!(node.metrics().contains("publish_seconds_count{code=\"Ok\"}"), "volumes were really mounted");
}
