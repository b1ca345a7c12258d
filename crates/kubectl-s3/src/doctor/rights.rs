//! Whether the driver's service accounts may do what they need to.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::finding::{Check, Finding, Level};
use crate::answer::answer;

/// One thing that an account has to be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// As the API server knows service accounts.
    pub user: String,
    pub namespace: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: Option<String>,
    pub name: Option<String>,
    pub verb: String,
}

/// Those that are denied, or why it could not be found out.
pub type Reviewed = Result<Vec<Right>, String>;

impl Right {
    pub(super) fn describe(&self) -> String {
        let Self { namespace, group, resource, subresource, name, verb, .. } = self;
        let part = |before: &str, text: &Option<String>| {
            text.as_ref().map(|text| format!("{before}{text}")).unwrap_or_default()
        };
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let (under, called, place) =
            (part("/", subresource), part(" ", name), part(" in namespace ", namespace));
        format!("{verb} {resource}{group}{under}{called}{place}")
    }
}

/// Asks the API server about each.
pub async fn review(client: &Client, rights: &[Right]) -> Reviewed {
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let asked = rights.iter().map(|right| {
        let reviews = reviews.clone();
        async move {
            let attributes = ResourceAttributes {
                group: Some(right.group.clone()),
                resource: Some(right.resource.clone()),
                subresource: right.subresource.clone(),
                name: right.name.clone(),
                namespace: right.namespace.clone(),
                verb: Some(right.verb.clone()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                user: Some(right.user.clone()),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let reviewed = answer(reviews.create(&PostParams::default(), &review)).await?;
            Ok(reviewed.status.is_some_and(|status| status.allowed))
        }
    });
    let answers: Result<Vec<bool>, String> = futures::future::try_join_all(asked).await;
    let denied = rights.iter().zip(answers?).filter(|(_, allowed)| !allowed);
    Ok(denied.map(|(right, _)| right.clone()).collect())
}

pub(super) fn denied(reviewed: Option<&Reviewed>) -> Vec<Finding> {
    match reviewed {
        None => vec![Finding::new(Check::Permissions, Level::Skipped, "", "the installation was not found")],
        Some(Err(error)) => {
            vec![Finding::new(
                Check::Permissions,
                Level::Unknown,
                "",
                format!("cannot ask for rights of others: {error}"),
            )]
        }
        Some(Ok(denied)) => denied
            .iter()
            .map(|right| {
                let message = format!("may not {}", right.describe());
                let remedy = if right.resource == "secrets" {
                    "a class names a Secret there: add the namespace to `provisioning.secretNamespaces` of the chart"
                } else {
                    "install the chart again, or give the account this right"
                };
                Finding::new(Check::Permissions, Level::Error, right.user.clone(), message).remedy(remedy)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_is_named() {
        let right = Right {
            user: "system:serviceaccount:kube-system:n".into(),
            namespace: None,
            group: "s3.csi.scality.com".into(),
            resource: "mountpoints3podattachments".into(),
            subresource: None,
            name: None,
            verb: "list".into(),
        };
        let found = denied(Some(&Ok(vec![right])));
        assert_eq!(found[0].level, Level::Error);
        assert!(found[0].message.starts_with("may not list mountpoints3podattachments"), "{found:?}");
        assert_eq!(denied(Some(&Err("forbidden".into())))[0].level, Level::Unknown);
        assert_eq!(denied(Some(&Ok(vec![]))), []);
    }
}
