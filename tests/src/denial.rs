//! Admission policies that refuse one request for a while, as an administrator's may.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::claims::LIMIT;
use crate::{Seen, eventually};

/// In each refusal.
const MESSAGE: &str = "the tests do not allow it";

/// Until [`Denial::lift`], the API server refuses what it refuses by this rule of a policy.
pub struct Denial {
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
    name: String,
}

impl Denial {
    /// Returns when `attempt`, which changes nothing, is refused.
    pub async fn of<T>(
        client: &Client,
        name: String,
        rule: Value,
        attempt: impl AsyncFn() -> kube::Result<T>,
    ) -> Self {
        let policy = json!({
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "false", "message": MESSAGE}],
            },
        });
        let binding = json!({
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        let (policies, bindings) = (Api::all(client.clone()), Api::all(client.clone()));
        let denial = Self { policies, bindings, name };
        let post = PostParams::default();
        denial.policies.create(&post, &serde_json::from_value(policy).unwrap()).await.unwrap();
        denial.bindings.create(&post, &serde_json::from_value(binding).unwrap()).await.unwrap();
        eventually("the policy is in force", LIMIT, || async {
            let refused = attempt().await.err();
            let seen = format!("{refused:?}");
            Seen::some(refused.filter(|error| error.to_string().contains(MESSAGE)).map(drop), seen)
        })
        .await;
        denial
    }

    pub async fn lift(self) {
        self.policies.delete(&self.name, &DeleteParams::default()).await.unwrap();
        self.bindings.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}
