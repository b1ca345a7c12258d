//! The reference driver is replaced by ours under running workloads, and ours by the reference.

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, label};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use s3_csi_tests::paste::{
    self, BACK_TO_THE_REFERENCE, BEFORE_THE_REFERENCE_GOES, CREATE_A_VOLUME_ANEW, IN_THE_REFERENCES_PLACE,
};
use s3_csi_tests::processes::processes;
use s3_csi_tests::reference::{self, Provisioned};
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;
use xtask::s3::{ALICE, Account, BOB, Client, ENDPOINT};

use crate::moves::versions;
use crate::story::{LIMIT, Story};
use s3_csi_tests::beat::{BEAT, delete_without_errors, serves_another};
use s3_csi_tests::driver_pods::driver_pods;
use s3_csi_tests::mount_deaths::{FOREVER, end_containers, reads_again};

/// The number of fields by which the API server selects attachments: the reference's definition has fewer.
async fn selectable_fields(story: &Story) -> usize {
    let definitions = Api::<CustomResourceDefinition>::all(story.here.client.clone());
    let definition = definitions.get(MountpointS3PodAttachment::crd_name()).await.unwrap();
    definition.spec.versions[0].selectable_fields.as_ref().map_or(0, Vec::len)
}

async fn create_secret(story: &Story, name: &str, account: Account) {
    let data = json!({"access_key_id": account.access_key, "secret_access_key": account.secret_key});
    let secret = json!({"metadata": {"name": name}, "stringData": data});
    let secrets = Api::<Secret>::namespaced(story.here.client.clone(), &story.here.namespace);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
}

/// A volume with keys of its own, and its bucket, which only these keys can use.
const OWN_KEYS: &str = "migrated-own-keys";

async fn runs_with_own_keys(story: &Story) -> Client {
    let server = Client::new(ENDPOINT, BOB).unwrap();
    server.create_bucket(OWN_KEYS).unwrap();
    server.put(OWN_KEYS, "file", b"x").unwrap();
    let namespace = &story.here.namespace;
    create_secret(story, "keys", BOB).await;
    story
        .volume(OWN_KEYS, |volume| {
            let csi = &mut volume["spec"]["csi"];
            csi["volumeAttributes"] = json!({"bucketName": OWN_KEYS, "authenticationSource": "secret"});
            csi["nodePublishSecretRef"] = json!({"name": "keys", "namespace": namespace});
        })
        .await;
    let mut listening = manifest::pod(&[OWN_KEYS], FOREVER);
    listening["containers"][0]["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
    story.here.run("own-keys", listening).await;
    story.says("own-keys", "good").await;
    server
}

/// The names and versions of the Mountpoint Pods that serve the volume with keys of its own.
async fn serve_own_keys(story: &Story) -> Vec<(String, String)> {
    let labels = ListParams::default().labels(&format!("{}={OWN_KEYS}", label::VOLUME_NAME));
    let pods = story.mountpoint_pods_api().list(&labels).await.unwrap().into_iter();
    pods.map(|pod| (pod.name_any(), pod.labels()[label::DRIVER_VERSION].clone())).collect()
}

/// The mount process of the reference has died. It cannot mount for this driver, so its Mountpoint Pod is deleted.
async fn is_replaced_when_it_is_deleted(story: &Story) {
    let before = serve_own_keys(story).await;
    let [(old, version)] = before.as_slice() else { panic!("{before:?}") };
    assert_eq!(version, reference::VERSION);
    let delete = DeleteParams::default();
    // First, so that the kubelet does not start the container again: our program in it could mount.
    story.mountpoint_pods_api().delete(old, &delete).await.unwrap();
    end_containers(&processes("s3-csi-mountpoint", Some(OWN_KEYS)));
    eventually("a Mountpoint Pod of this driver serves in its place", LIMIT, || async {
        story.mountpoint_pods().await;
        let now = serve_own_keys(story).await;
        let ours = matches!(now.as_slice(), [(_, version)] if version != reference::VERSION);
        Seen::some(ours.then_some(()), format!("{now:?}"))
    })
    .await;
    reads_again(story, "own-keys").await;
    assert_eq!(story.container("own-keys").await.restart_count, 0);
}

/// A volume that was provisioned for the reference is mounted.
async fn is_mounted(story: &Story, provisioned: &Provisioned) {
    let script = "echo x > /data/file && rm /data/file && echo WRITTEN; sleep 3600";
    story.here.run("provisioned", manifest::pod(&[provisioned.claim], script)).await;
    story.says("provisioned", "WRITTEN").await;
    story.mountpoint_pods().await;
    story.here.delete("provisioned").await;
}

/// It is deleted with its bucket.
async fn goes_with_its_claim(story: &Story, provisioned: &Provisioned) {
    for key in story.server.objects(&provisioned.bucket, "").unwrap() {
        story.server.delete(&provisioned.bucket, &key).unwrap();
    }
    let (client, delete) = (&story.here.client, DeleteParams::default());
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &story.here.namespace);
    claims.delete(provisioned.claim, &delete).await.unwrap();
    let volumes = Api::<PersistentVolume>::all(client.clone());
    eventually("the provisioned volume is deleted", LIMIT, || async {
        match volumes.get_opt(&provisioned.volume).await.unwrap() {
            None => Seen::Yes(()),
            Some(volume) => Seen::NotYet(format!("{:?} {:?}", volume.metadata, volume.status)),
        }
    })
    .await;
    assert!(!story.server.buckets().unwrap().contains(&provisioned.bucket));
    Api::<StorageClass>::all(client.clone()).delete(provisioned.class, &delete).await.unwrap();
}

/// The class that will have only a Secret for making buckets, and its claim.
const MAKER: &str = "migrated-maker";

async fn runs_with_a_provisioned_volume(story: &Story) -> Provisioned {
    let (client, post) = (story.here.client.clone(), PostParams::default());
    create_secret(story, "maker", ALICE).await;
    let class = json!({"metadata": {"name": MAKER}, "provisioner": DRIVER, "mountOptions": ["allow-delete"]});
    let classes = Api::<StorageClass>::all(client.clone());
    classes.create(&post, &serde_json::from_value(class).unwrap()).await.unwrap();
    let claim = json!({"metadata": {"name": MAKER}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": MAKER, "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claims = Api::<PersistentVolumeClaim>::namespaced(client, &story.here.namespace);
    claims.create(&post, &serde_json::from_value(claim).unwrap()).await.unwrap();
    story.here.run("made", manifest::pod(&[MAKER], BEAT)).await;
    story.says("made", "beat").await;
    let volume = claims.get(MAKER).await.unwrap().spec.unwrap().volume_name.unwrap();
    story.follow(&volume);
    let volumes = Api::<PersistentVolume>::all(story.here.client.clone());
    let bucket = volumes.get(&volume).await.unwrap().spec.unwrap().csi.unwrap().volume_handle;
    Provisioned { class: MAKER, claim: MAKER, volume, bucket }
}

/// This driver refuses the volume, as it says in an Event. Its workload runs on, and others start after the page's commands.
async fn is_created_anew(story: &Story, made: &Provisioned) {
    story.here.run("made-newer", manifest::pod(&[MAKER], BEAT)).await;
    story.has_event("so create the volume anew").await;
    story.says_again("made", "beat").await;
    let volume = [("VOLUME", made.volume.clone())];
    paste::below_with(&story.here.cluster, CREATE_A_VOLUME_ANEW, &volume).unwrap();
    story.says("made-newer", "beat").await;
    delete_without_errors(story, &["made", "made-newer"]).await;
}

/// The node services removed the keys of every mount that they ended, whichever driver had written them.
async fn no_keys_were_left(story: &Story) {
    let pods = driver_pods(story).list(&ListParams::default().labels("app=s3-csi-node")).await.unwrap();
    for pod in pods {
        let log = driver_pods(story).logs(&pod.name_any(), &LogParams::default()).await.unwrap();
        assert!(log.contains("unmounted") && !log.contains("cannot remove the credentials"), "{log}");
    }
}

#[tokio::test]
async fn the_reference_driver_is_replaced_under_running_workloads_and_back() {
    let story = Story::alone("migrated").await;
    let of_ours = selectable_fields(&story).await;
    let installed = reference::installed(&story.here.cluster);
    story.here.run("workload", story.workload(BEAT)).await;
    story.says("workload", "beat").await;
    let server = runs_with_own_keys(&story).await;
    let made = runs_with_a_provisioned_volume(&story).await;
    reference::rewrite(&story).await;
    assert_eq!(versions(&story).await, [reference::VERSION; 3]);
    reference::with_only_a_provisioner_secret(&story, &made, "maker").await;
    let found = paste::below(&story.here.cluster, BEFORE_THE_REFERENCE_GOES).unwrap();
    assert_eq!(
        found.lines().collect::<Vec<_>>(),
        [format!("volume {}", made.volume), format!("class {MAKER}")]
    );
    assert!(selectable_fields(&story).await < of_ours);
    let provisioned = reference::provisioned(&story).await;

    paste::below(&story.here.cluster, IN_THE_REFERENCES_PLACE).unwrap();
    serves_another(&story, "newer").await;
    let all = versions(&story).await;
    assert_eq!(all.len(), 4, "new workloads get a Mountpoint Pod of this driver: {all:?}");
    let kept = all.iter().filter(|version| *version == reference::VERSION).count();
    assert_eq!(kept, 3, "and the others keep theirs: {all:?}");
    eventually("the definition is that of this driver", LIMIT, || async {
        let fields = selectable_fields(&story).await;
        Seen::some((fields == of_ours).then_some(()), fields)
    })
    .await;

    is_created_anew(&story, &made).await;
    goes_with_its_claim(&story, &made).await;
    is_mounted(&story, &provisioned).await;
    goes_with_its_claim(&story, &provisioned).await;
    assert!(!story.log("own-keys").await.contains("bad"));
    is_replaced_when_it_is_deleted(&story).await;
    story.here.delete("own-keys").await;
    server.delete(OWN_KEYS, "file").unwrap();
    server.delete_bucket(OWN_KEYS).unwrap();

    paste::below(&story.here.cluster, BACK_TO_THE_REFERENCE).unwrap();
    serves_another(&story, "older").await;
    delete_without_errors(&story, &["workload", "newer", "older"]).await;
    eventually("nothing is left", LIMIT, || async {
        let left = story.left().await;
        Seen::some(left.is_empty().then_some(()), format!("{left:?}"))
    })
    .await;
    no_keys_were_left(&story).await;
    installed.undo();
    story.leaves_nothing().await;
}
