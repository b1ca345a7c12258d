//! The permissions of an account, according to the chart's rules and according to the API server.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::inside;

/// One verb on one kind of object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: String,
    pub resource: String,
    pub verb: String,
    /// All names if empty.
    pub names: Vec<String>,
}

impl Right {
    /// A rule that grants only this.
    pub fn rule(&self) -> Value {
        let Self { group, resource, verb, names } = self;
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    }

    /// The API server's error for accounts without this permission.
    pub fn refusal(&self) -> String {
        let Self { group, resource, verb, .. } = self;
        format!("cannot {verb} resource \"{resource}\" in API group \"{group}\"")
    }
}

/// The permissions that these rules grant, one by one.
pub fn rights(rules: &Value) -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut all = BTreeSet::new();
    for rule in rules.as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                all.extend(texts(&rule["verbs"]).into_iter().map(|verb| Right {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                    names: texts(&rule["resourceNames"]),
                }));
            }
        }
    }
    all
}

/// The permissions of this user in a namespace according to the API server, without those that every account has.
pub async fn granted(user: &str, namespace: &str) -> BTreeSet<Right> {
    let kubeconfig = Kubeconfig::read_from(inside::cluster().kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    let client = Client::try_from(config).unwrap();
    let review = serde_json::from_value(json!({"spec": {"namespace": namespace}})).unwrap();
    let answer: SelfSubjectRulesReview =
        Api::all(client).create(&PostParams::default(), &review).await.unwrap();
    let mut all = rights(&json!(answer.status.unwrap().resource_rules));
    all.retain(|right| right.group != "authorization.k8s.io" && right.group != "authentication.k8s.io");
    all
}
