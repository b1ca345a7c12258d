//! Policies and webhooks of a cluster's administrators, which refuse what the driver writes, or do not answer.

use std::net::TcpListener;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use xtask::command::run;

use crate::account::API_SERVER;
use crate::{Inside, Seen, chart, eventually};

/// The API server reads a new policy within seconds.
const EFFECTIVE_WITHIN: Duration = Duration::from_mins(1);
/// An update that is allowed takes milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Denies updates of pods for which the condition (CEL) is true, as from an update of this pod.
pub async fn deny_updates(here: &Inside, pods: &Api<Pod>, pod: &str, condition: &str) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": here.namespace},
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [updates()]},
            "matchConditions": [{"name": "test", "expression": condition}],
            "validations": [{"expression": "false", "message": "denied by the test"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": here.namespace},
        "spec": {"policyName": here.namespace, "validationActions": ["Deny"]},
    });
    chart::apply(&here.cluster, &[policy, binding], &[]);
    eventually("the policy denies updates", EFFECTIVE_WITHIN, || async {
        let answer = update(pods, pod).await;
        Seen::some(answer.is_err().then_some(()), "the update is allowed")
    })
    .await;
}

/// Ends what refuses updates of this pod, and the pod itself: both would disturb the tests that come after this one.
pub async fn lift(here: &Inside, pods: &Api<Pod>, pod: &str) {
    let mut delete = here.cluster.kubectl().unwrap();
    delete.args(["delete", "--ignore-not-found"]).args(
        ["validatingadmissionpolicybinding", "validatingadmissionpolicy", "validatingwebhookconfiguration"]
            .map(|kind| format!("{kind}/{}", here.namespace)),
    );
    run(&mut delete).unwrap();
    pods.delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
}

/// Has a webhook asked, which never answers, about updates of pods for which the condition (CEL) is true, as of this pod.
/// It is there until the listener is dropped.
pub async fn never_answer_updates(here: &Inside, pods: &Api<Pod>, pod: &str, condition: &str) -> TcpListener {
    let address = API_SERVER.split(':').next().unwrap();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": here.namespace},
        "webhooks": [{
            "name": "never.answers.test", "clientConfig": {"url": url}, "rules": [updates()],
            "matchConditions": [{"name": "test", "expression": condition}],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            // The longest there is; longer than the driver waits for an answer.
            "timeoutSeconds": 30,
        }],
    });
    chart::apply(&here.cluster, &[webhook], &[]);
    eventually("updates get no answer", EFFECTIVE_WITHIN, || async {
        let answer = tokio::time::timeout(ANSWERS_WITHIN, update(pods, pod)).await;
        Seen::some(answer.is_err().then_some(()), format!("{:?}", answer.map(Result::err)))
    })
    .await;
    listener
}

fn updates() -> Value {
    json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]})
}

/// Changes nothing.
async fn update(pods: &Api<Pod>, pod: &str) -> kube::Result<Pod> {
    let label = Patch::Merge(json!({"metadata": {"labels": {"test": "update"}}}));
    pods.patch(pod, &PatchParams { dry_run: true, ..PatchParams::default() }, &label).await
}
