//! What a Mountpoint Pod may use: as the installation says, and instead of that what its volume says.

use std::collections::BTreeMap;

use contract::quantity::Quantity;
use contract::volume::{Cache, Resources};
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde_json::Value;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const DISK: &str = "ephemeral-storage";

/// Keyed by resource: `cpu`, `memory`, `ephemeral-storage`.
type Amounts = BTreeMap<String, Quantity>;

/// Requests and limits of the container, as a pod's spec has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    requests: Amounts,
    limits: Amounts,
}

impl Bounds {
    /// From `{"requests": {"memory": "64Mi"}, "limits": {…}}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let given: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(text)
            .map_err(|error| format!("is not a JSON object of requests and limits: {error}"))?;
        let mut bounds = Self::default();
        for (kind, amounts) in given {
            let into = match kind.as_str() {
                "requests" => &mut bounds.requests,
                "limits" => &mut bounds.limits,
                other => return Err(format!("has `{other}`; it may have `requests` and `limits`")),
            };
            for (resource, amount) in amounts {
                let written = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                let parsed = Quantity::parse(&written)
                    .ok_or_else(|| format!("has `{written}` for {kind}.{resource}: write it like `512Mi`"))?;
                into.insert(resource, parsed);
            }
        }
        Ok(bounds)
    }

    /// For a pod of this volume.
    #[must_use]
    pub fn of(&self, volume: &Resources, cache: &Cache) -> Self {
        let mut bounds = self.clone();
        // What is in the cache counts for the pod, as kubelet sees it; what is there without one was measured without one.
        if let Cache::EmptyDir { size_limit: Some(size), in_memory } = cache {
            let counted = if *in_memory { MEMORY } else { DISK };
            if let Some(limit) = bounds.limits.get_mut(counted) {
                *limit = limit.plus(size);
            }
        }
        for (resource, request, limit) in [
            (CPU, &volume.requests_cpu, &volume.limits_cpu),
            (MEMORY, &volume.requests_memory, &volume.limits_memory),
        ] {
            bounds.replace(resource, request.as_ref(), limit.as_ref());
        }
        bounds
    }

    /// The API server refuses a request above its limit: of the two, the one that the volume did not set gives way.
    fn replace(&mut self, resource: &str, request: Option<&Quantity>, limit: Option<&Quantity>) {
        for (amounts, given) in [(&mut self.requests, request), (&mut self.limits, limit)] {
            if let Some(given) = given {
                amounts.insert(resource.to_owned(), given.clone());
            }
        }
        let (Some(requested), Some(most)) = (self.requests.get(resource), self.limits.get(resource)) else {
            return;
        };
        match (request, limit) {
            (None, Some(limit)) if requested.exceeds(most) => {
                self.requests.insert(resource.to_owned(), limit.clone());
            }
            (Some(request), None) if requested.exceeds(most) => {
                self.limits.insert(resource.to_owned(), request.clone());
            }
            _ => {}
        }
    }

    pub fn to_requirements(&self) -> ResourceRequirements {
        let written = |amounts: &Amounts| {
            Some(amounts.iter().map(|(resource, amount)| (resource.clone(), amount.to_written())).collect())
        };
        let (requests, limits) = (written(&self.requests), written(&self.limits));
        ResourceRequirements { requests, limits, ..ResourceRequirements::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DEFAULTS: &str = r#"{"requests": {"memory": "64Mi", "ephemeral-storage": "16Mi"},
        "limits": {"memory": "512Mi", "ephemeral-storage": "100Mi"}}"#;

    /// As volumes have them.
    fn quantity(text: &str) -> Option<Quantity> {
        Quantity::parse(text)
    }

    fn bounds(volume: &Resources, cache: &Cache) -> Value {
        json!(Bounds::parse(DEFAULTS).unwrap().of(volume, cache).to_requirements())
    }

    #[test]
    fn what_the_volume_says_wins_and_the_rest_gives_way() {
        let with = |request: Option<Quantity>, limit: Option<Quantity>| {
            let volume = Resources { requests_memory: request, limits_memory: limit, ..Resources::default() };
            let bounds = bounds(&volume, &Cache::None);
            let memory = |kind: &str| bounds[kind]["memory"].as_str().unwrap().to_owned();
            (memory("requests"), memory("limits"))
        };
        let pair = |request: &str, limit: &str| (request.to_owned(), limit.to_owned());
        assert_eq!(with(None, None), pair("64Mi", "512Mi"));
        assert_eq!(with(quantity("128Mi"), None), pair("128Mi", "512Mi"));
        assert_eq!(with(quantity("1Gi"), None), pair("1Gi", "1Gi"));
        assert_eq!(with(None, quantity("2Gi")), pair("64Mi", "2Gi"));
        assert_eq!(with(None, quantity("32Mi")), pair("32Mi", "32Mi"));
        assert_eq!(with(quantity("1Gi"), quantity("2Gi")), pair("1Gi", "2Gi"));
        let cpu = Resources { limits_cpu: quantity("2"), ..Resources::default() };
        assert_eq!(bounds(&cpu, &Cache::None)["limits"]["cpu"], "2");
    }

    #[test]
    fn a_cache_has_room_beside_the_rest() {
        let cache = |in_memory| Cache::EmptyDir { size_limit: quantity("1Gi"), in_memory };
        let none = Resources::default();
        let mebibytes = |count: u64| json!((count << 20).to_string());
        let on_disk = bounds(&none, &cache(false));
        assert_eq!(on_disk["limits"]["ephemeral-storage"], mebibytes(1124));
        assert_eq!(on_disk["limits"]["memory"], "512Mi");
        assert_eq!(bounds(&none, &cache(true))["limits"]["memory"], mebibytes(1536));
        let own = Resources { limits_memory: quantity("2Gi"), ..Resources::default() };
        assert_eq!(bounds(&own, &cache(true))["limits"]["memory"], "2Gi");
    }

    #[test]
    fn without_defaults_only_the_volume_counts() {
        let none = Bounds::parse("").unwrap();
        assert_eq!(
            json!(none.of(&Resources::default(), &Cache::None).to_requirements()),
            json!({"requests": {}, "limits": {}})
        );
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, word) in [
            ("[]", "JSON object"),
            (r#"{"request": {}}"#, "`request`"),
            (r#"{"limits": {"memory": "much"}}"#, "limits.memory"),
        ] {
            let error = Bounds::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
