use super::*;
use clap::Parser as _;
use contract::authentication::SecretPresence;
use contract::sharing::Identity;
use contract::volume_plan::VolumePlan;
use serde_json::{Value, json};

fn build(flags: &[&str], attributes: &[(&str, &str)], assigns_users: bool) -> Value {
    build_for(&"v".repeat(253), flags, attributes, assigns_users)
}

fn build_for(volume_name: &str, flags: &[&str], attributes: &[(&str, &str)], assigns_users: bool) -> Value {
    let flags = ["s3-csi-controller", "--mountpoint-image=image:1"].iter().chain(flags);
    let blueprint = Blueprint::new(Flags::parse_from(flags), "9.8.7", assigns_users);
    let attributes = [("bucketName", "bucket")].iter().chain(attributes);
    let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let volume = VolumePlan::parse(&attributes, SecretPresence::Absent, [""]).unwrap().volume;
    let key = SharingKey {
        node: "worker-1".into(),
        volume_name: volume_name.to_owned(),
        volume_id: "h".into(),
        mount_options: String::new(),
        fs_group: String::new(),
        identity: Identity::Driver,
    };
    let claim = ("shop".to_owned(), "data".to_owned());
    let served = Served { volume: &volume, claim: Some(&claim) };
    serde_json::to_value(blueprint.build("mp-1", "s3pa-1", "uid-1", &key, served)).unwrap()
}

#[test]
fn it_is_pinned_to_the_node_and_has_no_privileges() {
    let pod = build(&["--mountpoint-priority-class-name=critical"], &[], false);
    let spec = &pod["spec"];
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let term = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["worker-1"]}]}]);
    assert_eq!(terms, &term);
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(spec["restartPolicy"], "OnFailure");
    assert_eq!(spec["terminationGracePeriodSeconds"], 600);
    assert_eq!(spec["priorityClassName"], "critical");
    assert_eq!(spec["securityContext"]["fsGroup"], 1000);
    let container = &spec["containers"][0];
    assert_eq!(
        (&container["image"], &container["command"]),
        (&json!("image:1"), &json!(["/bin/s3-csi-mounter"]))
    );
    let security = &container["securityContext"];
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(security["readOnlyRootFilesystem"], json!(true));
    assert_eq!((&security["runAsNonRoot"], &security["runAsUser"]), (&json!(true), &json!(1000)));
    assert_eq!(
        spec["volumes"],
        json!([{"name": "comm", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}}])
    );
}

#[test]
fn labels_and_annotations_tell_what_it_is_for() {
    let annotations = "--mountpoint-pod-annotations={\"sidecar.istio.io/inject\":\"false\",\"s3.csi.scality.com/volume-id\":\"x\"}";
    let flags = ["--mountpoint-version=1.2", "--mountpoint-pod-labels={\"team\":\"a\"}", annotations];
    let pod = build(&flags, &[], false);
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["s3.csi.scality.com/mounted-by-csi-driver-version"], "9.8.7");
    assert_eq!(labels["s3.csi.scality.com/mountpoint-version"], "1.2");
    assert_eq!(labels["s3.csi.scality.com/pod-uid"], "uid-1");
    assert_eq!(labels["team"], "a");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["s3.csi.scality.com/volume-name"], "v".repeat(253));
    assert_eq!(annotations["s3.csi.scality.com/attachment"], "s3pa-1");
    assert_eq!(annotations["sidecar.istio.io/inject"], "false");
    assert_ne!(annotations["s3.csi.scality.com/volume-id"], "x");
    assert_eq!(annotations["s3.csi.scality.com/authentication-source"], "driver");
    assert_eq!(annotations["s3.csi.scality.com/claim"], "shop/data");
}

#[test]
fn a_volume_name_that_fits_is_a_label_as_well() {
    let label =
        |name: &str| build_for(name, &[], &[], false)["metadata"]["labels"][label::VOLUME_NAME].clone();
    assert_eq!(label("pv"), "pv");
    assert_eq!(label(&"v".repeat(63)), "v".repeat(63));
    assert_eq!(label(&"v".repeat(64)), Value::Null);
}

#[test]
fn openshift_chooses_users_itself() {
    let pod = build(&[], &[], true);
    assert_eq!(pod["spec"]["securityContext"].get("fsGroup"), None);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"].get("runAsUser"), None);
}

#[test]
fn attributes_shape_it() {
    let pod = build(
        &["--tls-ca-cert-configmap=authority", "--mountpoint-image-pull-secrets=one,two"],
        &[
            ("mountpointPodServiceAccountName", "mounts"),
            ("mountpointContainerResourcesRequestsCpu", "250m"),
            ("mountpointContainerResourcesLimitsMemory", "1Gi"),
            ("cache", "emptyDir"),
            ("cacheEmptyDirSizeLimit", "2Gi"),
        ],
        false,
    );
    let spec = &pod["spec"];
    assert_eq!(spec["serviceAccountName"], "mounts");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]));
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}})
    );
    assert_eq!(spec["volumes"][1], json!({"name": "local-cache", "emptyDir": {"sizeLimit": "2Gi"}}));
    assert_eq!(spec["volumes"][2]["configMap"]["name"], "authority");
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    assert_eq!(paths, ["/comm", "/local-cache", "/etc/s3-csi/authority"]);
}

#[test]
fn what_the_volume_does_not_bound_the_installation_does() {
    let bounds =
        "--mountpoint-resources={\"limits\": {\"memory\": \"512Mi\", \"ephemeral-storage\": \"100Mi\"}}";
    let flags = [bounds, "--mountpoint-cache-size-limit=1Gi"];
    let limits = |pod: &Value| pod["spec"]["containers"][0]["resources"]["limits"].clone();
    let pod = build(&flags, &[], false);
    assert_eq!(limits(&pod), json!({"memory": "512Mi", "ephemeral-storage": "100Mi"}));
    let pod = build(&flags, &[("cache", "emptyDir")], false);
    assert_eq!(pod["spec"]["volumes"][1]["emptyDir"]["sizeLimit"], "1Gi");
    assert_eq!(limits(&pod)["ephemeral-storage"], (1124_u64 << 20).to_string());
    let own = [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "2Gi")];
    assert_eq!(build(&flags, &own, false)["spec"]["volumes"][1]["emptyDir"]["sizeLimit"], "2Gi");
}

#[test]
fn a_cache_can_be_a_volume_of_its_own() {
    let pod = build(
        &[],
        &[
            ("cache", "ephemeral"),
            ("cacheEphemeralStorageClassName", "fast"),
            ("cacheEphemeralStorageResourceRequest", "10Gi"),
        ],
        false,
    );
    let claim = &pod["spec"]["volumes"][1]["ephemeral"]["volumeClaimTemplate"]["spec"];
    assert_eq!(
        (&claim["storageClassName"], &claim["resources"]["requests"]["storage"]),
        (&json!("fast"), &json!("10Gi"))
    );
}
