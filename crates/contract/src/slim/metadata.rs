//! The part of an object's metadata that decisions need.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Whose labels and annotations matter: the driver's own, those of the cluster's binder and scheduler, and those in which
/// the kubelet lists the drivers of a node.
const DOMAINS: &[&str] = &[
    "s3.csi.scality.com/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "pv.kubernetes.io/",
    "csi.volume.kubernetes.io/",
];
/// Bytes of them, keys included: several times what all that we know of have. Authors of claims may write there, too, and
/// what they write beyond this is not there for us.
const MOST_BYTES: usize = 8 * 1024;

/// For `deserialize_with`.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let kept = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: kept.name,
        namespace: kept.namespace,
        uid: kept.uid,
        resource_version: kept.resource_version,
        creation_timestamp: kept.creation_timestamp,
        deletion_timestamp: kept.deletion_timestamp,
        deletion_grace_period_seconds: kept.deletion_grace_period_seconds,
        finalizers: kept.finalizers,
        labels: kept.labels.map(|known| known.0),
        annotations: kept.annotations.map(|known| known.0),
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    /// All of them: they are written back as a whole.
    finalizers: Option<Vec<String>>,
    labels: Option<Known>,
    annotations: Option<Known>,
}

struct Known(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Sieve)
    }
}

struct Sieve;

impl<'de> Visitor<'de> for Sieve {
    type Value = Known;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Known, A::Error> {
        let (mut known, mut left) = (BTreeMap::new(), MOST_BYTES);
        while let Some(key) = map.next_key::<String>()? {
            if !DOMAINS.iter().any(|domain| key.starts_with(domain)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<String>()?;
            if let Some(less) = left.checked_sub(key.len() + value.len()) {
                left = less;
                known.insert(key, value);
            }
        }
        Ok(Known(known))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_needed_is_not_kept() {
        let fat = "x".repeat(200_000);
        let object = json!({
            "name": "a", "uid": "u", "finalizers": ["f"], "generateName": fat, "selfLink": fat,
            "managedFields": [{"manager": fat}], "ownerReferences": [{"name": fat}],
            "labels": {"app": fat, "s3.csi.scality.com/volume-name": "v"},
            "annotations": {"note": fat, "pv.kubernetes.io/provisioned-by": "us", "volume.kubernetes.io/long": fat},
        });
        let text = object.to_string();
        let kept = metadata(&mut serde_json::Deserializer::from_str(&text)).unwrap();
        let expected = json!({
            "name": "a", "uid": "u", "finalizers": ["f"], "labels": {"s3.csi.scality.com/volume-name": "v"},
            "annotations": {"pv.kubernetes.io/provisioned-by": "us"},
        });
        assert_eq!(json!(kept), expected);
        assert_eq!(metadata(json!({"name": "a"})).unwrap().annotations, None);
    }

    #[test]
    fn many_small_ones_are_bounded_as_well() {
        let many: BTreeMap<String, String> =
            (0..5000).map(|number| (format!("volume.kubernetes.io/{number}"), "x".to_owned())).collect();
        let kept = metadata(json!({"annotations": many})).unwrap().annotations.unwrap();
        let bytes: usize = kept.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(bytes <= MOST_BYTES && kept.len() > 100, "{bytes}");
    }
}
