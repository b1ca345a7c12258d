//! What pods can do with an identity: everything in one bucket, read another, and not even mount a third.

use jiff::Timestamp;
use s3_csi_tests::manifest;
use s3_csi_tests::permissions::{EVERYTHING, Permission, READING};
use s3_csi_tests::web_identity::WebIdentity;
use serde_json::json;

use crate::roles::{READ, WRITE, workload};
use crate::story::Story;

const OPEN: &str = "open";
const READABLE: &str = "readable";
const CLOSED: &str = "closed";
const NON_ROOT: u32 = 1001;
const ALL: &str =
    "set -e; echo hello > /data/new-$HOSTNAME; cat /data/new-$HOSTNAME; rm /data/new-$HOSTNAME; ls /data; ";

/// Of an identity for [`hold`]. The last is for buckets of claims.
pub(crate) const SOME: &[Permission<'_>] =
    &[(EVERYTHING, OPEN), (READING, READABLE), (EVERYTHING, "*csi-s3-*")];
pub(crate) const ALL_BUCKETS: &[Permission<'_>] = &[(EVERYTHING, "*")];
pub(crate) const ONLY_READING: &[Permission<'_>] = &[(READING, OPEN)];

/// Creates the buckets.
pub(crate) fn create_buckets() {
    let client = WebIdentity::client();
    for bucket in [OPEN, READABLE, CLOSED] {
        client.create_bucket(bucket).unwrap();
        client.put(bucket, "hello", b"hello").unwrap();
    }
}

fn claim(story: &Story, source: &str, bucket: &str) -> String {
    format!("{}-{source}-{bucket}", story.name)
}

/// Creates volumes of this `authenticationSource` for the buckets.
pub(crate) async fn create_volumes(story: &Story, source: &str) {
    let root = ["allow-delete".to_owned()];
    let non_root = ["allow-delete", "allow-other", &format!("uid={NON_ROOT}"), &format!("gid={NON_ROOT}")];
    let non_root = non_root.map(str::to_owned);
    for (name, bucket, options) in [
        (OPEN, OPEN, &root[..]),
        (READABLE, READABLE, &root),
        (CLOSED, CLOSED, &root),
        ("non-root", OPEN, &non_root),
    ] {
        story
            .volume(&claim(story, source, name), |volume| {
                volume["spec"]["mountOptions"] = json!(options);
                volume["spec"]["csi"]["volumeAttributes"] =
                    json!({"bucketName": bucket, "authenticationSource": source});
            })
            .await;
    }
}

/// Pods of this account, with volumes of this source, have the permissions [`SOME`].
pub(crate) async fn hold(story: &Story, name: &str, source: &str, account: &str) {
    let since = Timestamp::now();
    let claim = |bucket| claim(story, source, bucket);
    let pod = |pod| format!("{name}-{source}-{pod}");
    let (everything, non_root, closed) = (pod("everything"), pod("non-root"), pod(CLOSED));

    let script = format!(
        "{ALL}cat /data1/hello; ls /data1; \
        if echo x > /data1/new; then echo written; else echo refused; fi; sleep 3600"
    );
    let mut both = manifest::pod(&[&claim(OPEN), &claim(READABLE)], &script);
    both["serviceAccountName"] = json!(account);
    story.here.run(&everything, both).await;
    let mut other = workload(&claim("non-root"), account, &format!("{ALL}id -u; sleep 3600"));
    other["securityContext"] = json!({"runAsUser": NON_ROOT, "runAsGroup": NON_ROOT, "runAsNonRoot": true});
    story.here.run(&non_root, other).await;
    story.here.run(&closed, workload(&claim(CLOSED), account, READ)).await;

    story.says(&everything, "refused").await;
    story.says(&non_root, &NON_ROOT.to_string()).await;
    story.has_event_after(since, &closed, &format!("denies access to bucket `{CLOSED}`")).await;
    assert!(story.container(&closed).await.container_id.is_none(), "{closed} has started");
    story.mountpoint_pods().await;
    for pod in [everything, non_root, closed] {
        story.here.delete(&pod).await;
    }
}

/// The permissions of a pod's own account, in a bucket that the driver may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum May {
    Read,
    Write,
}

/// A pod has no other permissions than these of its own account.
pub(crate) async fn own(story: &Story, name: &str, account: &str, may: May) {
    let pod = format!("{name}-{account}");
    story.here.run(&pod, workload(&claim(story, "pod", OPEN), account, &format!("{WRITE}{READ}"))).await;
    story.says(&pod, if may == May::Write { "written" } else { "refused" }).await;
    story.says(&pod, "good").await;
    story.mountpoint_pods().await;
    story.here.delete(&pod).await;
}
