//! The controller as a pod of a real cluster, with its image, its account and its rights.

use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, annotation};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::controller::{ACCOUNT, MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE, install};
use s3_csi_tests::{Inside, Seen, eventually};
use serde_json::json;
use xtask::image::{BUSYBOX, DRIVER as IMAGE, TESTPOD};

const LIMIT: Duration = Duration::from_mins(1);

fn deployment() -> Deployment {
    let arguments = [
        format!("--mountpoint-image={TESTPOD}"),
        "--mountpoint-image-pull-policy=Never".to_owned(),
        "--mountpoint-container-command=/bin/testpod".to_owned(),
        format!("--lease-namespace={RELEASE_NAMESPACE}"),
    ];
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 1});
    let container = json!({
        "name": "controller", "image": IMAGE, "imagePullPolicy": "Never", "args": arguments,
        "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"),
        "securityContext": {
            "runAsNonRoot": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    let labels = json!({"app": "s3-csi-controller"});
    serde_json::from_value(json!({
        "metadata": {"name": "s3-csi-controller"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"serviceAccountName": ACCOUNT, "containers": [container]}},
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn a_workload_gets_its_attachment_and_a_running_mountpoint_pod() {
    let here = Inside::join("controller").await;
    install(&here.client).await;
    let deployments = Api::<Deployment>::namespaced(here.client.clone(), RELEASE_NAMESPACE);
    deployments.create(&PostParams::default(), &deployment()).await.unwrap();
    eventually("the controller is ready", LIMIT, || async {
        let status = deployments.get("s3-csi-controller").await.unwrap().status.unwrap_or_default();
        Seen::some((status.ready_replicas == Some(1)).then_some(()), format!("{status:?}"))
    })
    .await;

    // Made for each other; the real binder binds them.
    let volume = json!({
        "metadata": {"name": "premade"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "claimRef": {"namespace": here.namespace, "name": "premade"},
            "csi": {"driver": DRIVER, "volumeHandle": "premade", "volumeAttributes": {"bucketName": "premade"}},
        },
    });
    let claim = json!({
        "metadata": {"name": "premade"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "premade",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let volumes = Api::<PersistentVolume>::all(here.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(here.client.clone(), &here.namespace);
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let container = json!({"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never"});
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "premade"}});
    let workload = here.run("workload", json!({"containers": [container], "volumes": [volume]})).await;

    let attachments = Api::<MountpointS3PodAttachment>::all(here.client.clone());
    let pods = Api::<Pod>::namespaced(here.client.clone(), MOUNTPOINT_NAMESPACE);
    let uid = workload.uid().unwrap();
    let mountpoint = eventually("the Mountpoint Pod runs", LIMIT, || async {
        let on_node = ListParams::default().fields("spec.nodeName=node-1");
        let all = attachments.list(&on_node).await.unwrap().items;
        let name =
            all.iter().find_map(|attachment| attachment.spec.mountpoint_pod_of(&uid).map(str::to_owned));
        let Some(name) = name else { return Seen::NotYet(format!("{} attachments", all.len())) };
        let status = pods.get_opt(&name).await.unwrap().and_then(|pod| pod.status).unwrap_or_default();
        let runs = status.phase.as_deref() == Some("Running");
        Seen::some(runs.then_some(name), serde_json::to_string(&status).unwrap())
    })
    .await;
    let pod = pods.get(&mountpoint).await.unwrap();
    assert_eq!(
        pod.spec.unwrap().node_name.as_deref(),
        Some("node-1"),
        "the scheduler placed it with its workload"
    );

    here.delete("workload").await;
    eventually("it is detached", LIMIT, || async {
        let left = attachments.list(&ListParams::default()).await.unwrap().items;
        let marked =
            pods.get(&mountpoint).await.unwrap().annotations().contains_key(annotation::NEEDS_UNMOUNT);
        Seen::some(
            (left.is_empty() && marked).then_some(()),
            format!("{} left, marked: {marked}", left.len()),
        )
    })
    .await;

    // Nothing was mounted, so nobody unmounts: the pod is removed by hand.
    pods.delete(&mountpoint, &DeleteParams::default().grace_period(1)).await.unwrap();
    claims.delete("premade", &DeleteParams::default()).await.unwrap();
    volumes.delete("premade", &DeleteParams::default()).await.unwrap();
    deployments.delete("s3-csi-controller", &DeleteParams::default()).await.unwrap();
}
