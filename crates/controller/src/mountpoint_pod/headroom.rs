//! The pod that reserves headroom for a Mountpoint Pod to come, and the Mountpoint Pod that takes it.

use contract::names::{annotation, label};
use contract::volume::{Cache, Volume};
use k8s_openapi::api::core::v1::{Affinity, Container, Pod, PodAffinity, PodAffinityTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Blueprint;
use super::shape::Shape;
use super::warm::SAFE_TO_EVICT;
use crate::step::WorkloadRef;

/// A Mountpoint Pod waits for the end of what it preempts. Zero would free the room for the scheduler before the kubelet has
/// ended the container, and the kubelet would reject the Mountpoint Pod.
const GRACE_SECONDS: i64 = 1;

/// The workload and the volume that headroom is reserved for.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    pub workload: &'a WorkloadRef,
    pub volume_name: &'a str,
    pub volume: &'a Volume,
}

impl Blueprint {
    /// Requests what the Mountpoint Pod of the volume will request.
    pub fn build_headroom(&self, name: &str, reservation: Reservation<'_>) -> Pod {
        let Reservation { workload: WorkloadRef { namespace, name: workload, uid }, volume_name, volume } =
            reservation;
        let mut labels = self.flags.mountpoint_pod_labels.0.clone();
        labels.extend(self.flags.headroom_pod_labels.0.clone());
        labels.insert(label::HEADROOM_FOR_POD.to_owned(), uid.clone());
        if volume_name.len() <= label::LONGEST_VALUE {
            labels.insert(label::HEADROOM_FOR_VOLUME.to_owned(), volume_name.to_owned());
        }
        let own = [
            (annotation::HEADROOM_FOR_VOLUME, volume_name.to_owned()),
            (annotation::HEADROOM_FOR, format!("{namespace}/{workload}")),
            (SAFE_TO_EVICT, "true".to_owned()),
        ];
        let mut annotations = self.flags.mountpoint_pod_annotations.0.clone();
        annotations.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let metadata = self.metadata(name, labels, annotations);
        let affinity = Some(beside(uid, namespace));
        let spec = PodSpec { affinity, ..self.headroom_spec(&Shape::of(volume)) };
        Pod { metadata, spec: Some(spec), status: None }
    }

    fn headroom_spec(&self, shape: &Shape) -> PodSpec {
        let flags = &self.flags;
        let usual = self.spec("", shape);
        let (volumes, mounts) = self.volumes(&Cache::None);
        // A mounter without a mount waits, and ends with SIGTERM.
        let mut container = Container {
            name: "pause".to_owned(),
            volume_mounts: Some(mounts),
            ..usual.containers[0].clone()
        };
        let mut volumes = Some(volumes);
        if !flags.headroom_image.is_empty() {
            container.image = Some(flags.headroom_image.clone());
            container.image_pull_policy = Some(flags.headroom_image_pull_policy.clone());
            (container.command, container.volume_mounts, volumes) = (None, None, None);
        }
        PodSpec {
            containers: vec![container],
            priority_class_name: Some(flags.mountpoint_headroom_priority_class_name.clone()),
            restart_policy: None,
            service_account_name: None,
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            volumes,
            ..usual
        }
    }

    /// The Mountpoint Pod that may take the place of a headroom pod.
    #[must_use]
    pub fn preempting(&self, mut pod: Pod) -> Pod {
        let class = self.flags.mountpoint_preempting_priority_class_name.clone();
        pod.spec.get_or_insert_default().priority_class_name = Some(class);
        pod
    }
}

/// On the node of the workload, wherever the scheduler puts that.
fn beside(workload_uid: &str, namespace: &str) -> Affinity {
    let label = (label::HEADROOM_FOR_WORKLOAD.to_owned(), workload_uid.to_owned());
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some([label].into()), match_expressions: None }),
        namespaces: Some(vec![namespace.to_owned()]),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    let pod_affinity = PodAffinity {
        required_during_scheduling_ignored_during_execution: Some(vec![term]),
        ..PodAffinity::default()
    };
    Affinity { pod_affinity: Some(pod_affinity), ..Affinity::default() }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use contract::authentication::SecretPresence;
    use contract::sharing::{Identity, SharingKey};
    use contract::volume_plan::VolumePlan;
    use serde_json::{Value, json};

    use super::super::Served;
    use super::*;
    use crate::flags::Flags;

    /// The headroom pod of a volume, and its Mountpoint Pod.
    fn pods(flags: &[&str], volume_name: &str, attributes: &[(&str, &str)]) -> (Value, Value) {
        let classes = [
            "--mountpoint-priority-class-name=critical",
            "--mountpoint-preempting-priority-class-name=preempting",
            "--mountpoint-headroom-priority-class-name=headroom",
        ];
        let all = ["s3-csi-controller", "--mountpoint-image=image:1"].iter().chain(&classes).chain(flags);
        let blueprint = Blueprint::new(Flags::parse_from(all), "9.8.7", false);
        let attributes = [("bucketName", "bucket")].iter().chain(attributes);
        let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let volume = VolumePlan::parse(&attributes, SecretPresence::Absent, [""]).unwrap().volume;
        let workload = &WorkloadRef { namespace: "shop".into(), name: "till".into(), uid: "uid-1".into() };
        let reservation = Reservation { workload, volume_name, volume: &volume };
        let key = SharingKey {
            node: "worker-1".into(),
            volume_name: volume_name.to_owned(),
            volume_id: "h".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: Identity::Driver,
        };
        let usual = blueprint.build("mp-1", "s3pa-1", "uid-1", &key, Served { volume: &volume, claim: None });
        (json!(blueprint.build_headroom("hr-1", reservation)), json!(blueprint.preempting(usual)))
    }

    #[test]
    fn it_keeps_exactly_the_room_of_the_mountpoint_pod_that_may_preempt_it() {
        let bounds =
            "--mountpoint-resources={\"requests\":{\"memory\":\"64Mi\"},\"limits\":{\"memory\":\"512Mi\"}}";
        let own = [
            ("mountpointContainerResourcesRequestsCpu", "250m"),
            ("cache", "emptyDir"),
            ("cacheEmptyDirMedium", "Memory"),
            ("cacheEmptyDirSizeLimit", "1Gi"),
        ];
        for attributes in [&[][..], &own] {
            let (headroom, mountpoint) = pods(&[bounds], "pv", attributes);
            let resources = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
            assert_eq!(resources(&headroom), resources(&mountpoint));
            assert_eq!(headroom["spec"]["priorityClassName"], "headroom");
            assert_eq!(mountpoint["spec"]["priorityClassName"], "preempting");
        }
    }

    #[test]
    fn it_follows_its_workload() {
        let (pod, _) = pods(&[], "pv", &[]);
        let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {"s3.csi.scality.com/headroom-for-workload": "uid-1"}},
            "namespaces": ["shop"], "topologyKey": "kubernetes.io/hostname",
        }]}});
        assert_eq!(pod["spec"]["affinity"], affinity);
        assert_eq!(pod["spec"]["tolerations"], json!([{"operator": "Exists"}]));
        let labels = json!({
            "s3.csi.scality.com/headroom-for-pod": "uid-1", "s3.csi.scality.com/headroom-for-volume": "pv",
        });
        assert_eq!(pod["metadata"]["labels"], labels);
        let (pod, _) = pods(&[], &"v".repeat(64), &[]);
        assert_eq!(pod["metadata"]["labels"].as_object().unwrap().len(), 1, "longer than a label's value");
        assert_eq!(pod["metadata"]["annotations"][annotation::HEADROOM_FOR_VOLUME], "v".repeat(64));
    }

    #[test]
    fn its_labels_are_those_of_mountpoint_pods_then_its_own_and_last_the_drivers() {
        let flags = [
            "--mountpoint-pod-labels={\"team\":\"storage\",\"tier\":\"mounts\"}",
            "--headroom-pod-labels={\"tier\":\"headroom\",\"s3.csi.scality.com/headroom-for-pod\":\"other\"}",
        ];
        let (headroom, mountpoint) = pods(&flags, "pv", &[]);
        let labels = json!({
            "s3.csi.scality.com/headroom-for-pod": "uid-1", "s3.csi.scality.com/headroom-for-volume": "pv",
            "team": "storage", "tier": "headroom",
        });
        assert_eq!(headroom["metadata"]["labels"], labels);
        assert_eq!(mountpoint["metadata"]["labels"]["tier"], "mounts");
    }

    #[test]
    fn its_program_is_the_mounter_or_that_of_another_image() {
        let container = |flags: &[&str]| pods(flags, "pv", &[]).0["spec"]["containers"][0].clone();
        let own = container(&[]);
        assert_eq!((&own["image"], &own["command"]), (&json!("image:1"), &json!(["/bin/s3-csi-mounter"])));
        let pause = container(&["--headroom-image=pause:3", "--headroom-image-pull-policy=Always"]);
        assert_eq!((&pause["image"], &pause["imagePullPolicy"]), (&json!("pause:3"), &json!("Always")));
        assert_eq!((pause.get("command"), pause.get("volumeMounts")), (None, None));
        for container in [own, pause] {
            let security = &container["securityContext"];
            assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!((&security["runAsNonRoot"], &security["runAsUser"]), (&json!(true), &json!(1000)));
            assert_eq!(security["seccompProfile"], json!({"type": "RuntimeDefault"}));
        }
    }
}
