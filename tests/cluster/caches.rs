//! Caches of workloads that are not root: on the node's disk, and on a volume that is made for the Mountpoint Pod.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use contract::names::{CACHE_VOLUME, comm_on_node};
use contract::volume::attribute;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use s3_csi_tests::account::MOUNTPOINT_NAMESPACE;
use s3_csi_tests::{Seen, eventually, manifest};
use serde_json::json;

use crate::story::{LIMIT, Story};

/// Of the file that is read. A block of the cache has 1 MiB.
const BLOCKS: usize = 3;

/// A pod whose containers are not root reads a file through the cache.
async fn read_through(story: &Story, attributes: &[(&str, &str)]) {
    let (claim, length) = (format!("{}-volume", story.name), BLOCKS << 20);
    story.server.put(story.name, "file", &vec![b'x'; length]).unwrap();
    story
        .volume(&claim, |volume| {
            // Else what is known of the file would expire after a minute.
            volume["spec"]["mountOptions"] = json!(["allow-delete", "metadata-ttl=indefinite"]);
            for (name, value) in attributes {
                volume["spec"]["csi"]["volumeAttributes"][name] = json!(value);
            }
        })
        .await;
    let read = format!("[ $(cat /data/file | wc -c) = {length} ]");
    let beats = format!("while true; do if {read}; then echo good; else echo bad; fi; sleep 0.3; done");
    let mut pod = manifest::pod(&[&claim], &format!("cat /data/note; {beats}"));
    let mut first = pod["containers"][0].clone();
    first["name"] = json!("first");
    first["command"] = json!(["/bin/sh", "-c", format!("{read} && echo from the first > /data/note")]);
    pod["initContainers"] = json!([first]);
    pod["securityContext"] =
        json!({"runAsUser": 4000, "runAsGroup": 4000, "runAsNonRoot": true, "fsGroup": 5000});
    story.here.run("reader", pod).await;
    story.says("reader/main", "from the first").await;
    story.says("reader/main", "good").await;
}

/// Waits until the cache in this folder has the file. From then on it answers for the server.
async fn answers(story: &Story, folder: &Path) {
    eventually("the file is cached", LIMIT, || async {
        let blocks = files_below(folder);
        Seen::some((blocks >= BLOCKS).then_some(()), format!("{blocks} files"))
    })
    .await;
    story.server.delete(story.name, "file").unwrap();
    story.says_again("reader/main", "good").await;
    story.says_again("reader/main", "good").await;
    assert!(!story.log("reader/main").await.contains("bad"), "the cache has all of it");
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn a_cache_serves_init_and_main_containers_without_root() {
    let story = Story::begin("cache-on-disk").await;
    read_through(&story, &[(attribute::CACHE, "emptyDir"), (attribute::CACHE_SIZE_LIMIT, "64Mi")]).await;
    let names = story.mountpoint_pods().await;
    assert_eq!(names.len(), 1);
    let pod = story.mountpoint_pods_api().get(&names[0]).await.unwrap();
    let comm = comm_on_node(Path::new("/var/lib/kubelet"), &pod.uid().unwrap());
    answers(&story, &comm.with_file_name(CACHE_VOLUME)).await;
    story.here.delete("reader").await;
    story.leaves_nothing().await;
}

/// The cluster provisions no disks: the only volume of the class is made here.
#[tokio::test]
async fn a_cache_on_a_volume_of_its_own_goes_with_its_mountpoint_pod() {
    const CLASS: &str = "disk-for-caches";
    let disk = Path::new("/var/lib").join(CLASS);
    let story = Story::begin("cache-on-volume").await;
    fs::create_dir(&disk).unwrap();
    // The kubelet does not change the owner of a folder of the node.
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o777)).unwrap();
    let class = json!({"metadata": {"name": CLASS}, "provisioner": "kubernetes.io/no-provisioner"});
    let classes = Api::<StorageClass>::all(story.here.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    let volume = json!({"metadata": {"name": CLASS}, "spec": {
        "capacity": {"storage": "64Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": disk, "type": "Directory"},
    }});
    let volumes = Api::<PersistentVolume>::all(story.here.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();

    let attributes = [
        (attribute::CACHE, "ephemeral"),
        (attribute::CACHE_STORAGE_CLASS, CLASS),
        (attribute::CACHE_STORAGE_REQUEST, "64Mi"),
    ];
    read_through(&story, &attributes).await;
    answers(&story, &disk).await;
    assert_eq!(story.mountpoint_pods().await.len(), 1);

    story.here.delete("reader").await;
    let claims = Api::<PersistentVolumeClaim>::namespaced(story.here.client.clone(), MOUNTPOINT_NAMESPACE);
    eventually("the claim of the cache goes with its Mountpoint Pod", LIMIT, || async {
        let claims = claims.list(&ListParams::default()).await.unwrap().items.into_iter();
        let of_class = |claim: &PersistentVolumeClaim| {
            claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(CLASS)
        };
        let left: Vec<PersistentVolumeClaim> = claims.filter(of_class).collect();
        Seen::some(left.is_empty().then_some(()), json!(left))
    })
    .await;
    volumes.delete(CLASS, &DeleteParams::default()).await.unwrap();
    classes.delete(CLASS, &DeleteParams::default()).await.unwrap();
    fs::remove_dir_all(&disk).unwrap();
    story.leaves_nothing().await;
}
