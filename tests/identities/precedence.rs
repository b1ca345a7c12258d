//! Which of several identities a workload gets, and where its keys come from.

use jiff::Timestamp;
use s3_csi_tests::agent::{LINK_LOCAL, UNIQUE_LOCAL};
use s3_csi_tests::permissions::Role;
use s3_csi_tests::web_identity::WebIdentity;
use s3_csi_tests::{Seen, changed, eventually};
use serde_json::json;
use xtask::driver;

use crate::associations::{Associations, agent};
use crate::permissions::{self, May};
use crate::roles::{READ, account, change_role, workload};
use crate::story::{LIMIT, Story};

#[tokio::test]
async fn a_role_comes_before_an_association() {
    let story = Story::alone("precedence").await;
    let server = WebIdentity::start(&story.here.cluster);
    permissions::create_buckets();
    permissions::create_volumes(&story, "pod").await;
    let namespace = &story.here.namespace;
    let role = |account, permissions: &[_]| {
        let role = Role::of(account, namespace, account, "");
        server.create(&Role { permissions: permissions.to_vec(), ..role })
    };
    let (reader, some) = (role("both", permissions::ONLY_READING), role("by-role", permissions::SOME));
    for (name, role) in [("both", None), ("by-role", Some(&*some)), ("by-association", None)] {
        account(&story, name, role).await;
    }
    let both = server.create_user("both", permissions::ALL_BUCKETS);
    let associated = server.create_user("by-association", permissions::SOME);
    let associations = Associations::default();
    for keys in [both, associated] {
        associations.lock().unwrap().insert(format!("{namespace}:{}", keys.name), keys);
    }
    let server_values = WebIdentity::values();
    let values = [&*server_values, "podIdentity.eks.enabled=true"];
    let link_local = agent(LINK_LOCAL, &associations);
    let changed = changed::values(&story.here.cluster, &values);

    anonymous(&story).await;
    tokio::join!(
        permissions::hold(&story, "role", "pod", "by-role"),
        permissions::hold(&story, "association", "pod", "by-association"),
    );
    permissions::own(&story, "associated", "both", May::Write).await;
    assert!(link_local.given_of(both) > 0);
    no_mount_is_left(&story).await;
    change_role(&story, "both", &reader).await;
    let given = [both, associated].map(|keys| link_local.given_of(keys));
    permissions::own(&story, "annotated", "both", May::Read).await;
    assert_eq!(server.session(&reader), Some(format!("s3-csi-{namespace}-both")));

    no_mount_is_left(&story).await;
    let unique_local = agent(UNIQUE_LOCAL, &associations);
    driver::install(&story.here.cluster, &[&values[..], &["podIdentity.eks.ipFamily=ipv6"]].concat())
        .unwrap();
    permissions::hold(&story, "ipv6", "pod", "by-association").await;
    assert!(unique_local.given_of(associated) > 0);
    assert_eq!([both, associated].map(|keys| link_local.given_of(keys)), given, "the other is not asked");
    changed.undo();
    story.leaves_nothing().await;
}

/// The server does not know the driver's keys, and would refuse what is signed with them.
async fn anonymous(story: &Story) {
    const PUBLIC: &str = "public";
    const CLAIM: &str = "precedence-public";
    let client = WebIdentity::client();
    client.create_bucket(PUBLIC).unwrap();
    client.put(PUBLIC, "hello", b"hello").unwrap();
    let policy = json!({"Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [format!("arn:aws:s3:::{PUBLIC}"), format!("arn:aws:s3:::{PUBLIC}/*")],
    }]});
    client.put_policy(PUBLIC, &policy.to_string()).unwrap();
    story
        .volume(CLAIM, |volume| {
            volume["spec"]["mountOptions"] = json!(["no-sign-request"]);
            volume["spec"]["csi"]["volumeAttributes"]["bucketName"] = json!(PUBLIC);
        })
        .await;
    story.here.run(PUBLIC, workload(CLAIM, "default", READ)).await;
    story.says(PUBLIC, "good").await;
    story.mountpoint_pods().await;
    story.here.delete(PUBLIC).await;
}

/// Mounts of which no workload is left would go on renewing their keys.
async fn no_mount_is_left(story: &Story) {
    eventually("no Mountpoint Pod is left", LIMIT, || async {
        let pods = story.mountpoint_pods().await;
        Seen::some(pods.is_empty().then_some(()), format!("{pods:?}"))
    })
    .await;
}

/// Nothing has Amazon's names here, so that the pod's Event says which one was asked.
#[tokio::test]
async fn amazons_sts_is_asked_in_the_region_of_the_volume_else_of_the_driver() {
    let story = Story::begin("sts-region").await;
    account(&story, "annotated", Some("arn:aws:iam::123456789012:role/reader")).await;
    let cases = [
        ("sts-region-own", Some("eu-west-1"), &["region eu-central-1"][..], "eu-west-1"),
        ("sts-region-bucket", None, &["region eu-central-1"], "eu-central-1"),
        ("sts-region-driver", None, &[], "us-east-1"),
    ];
    for (name, attribute, options, _) in cases {
        story
            .volume(name, |volume| {
                volume["spec"]["mountOptions"] = json!(options);
                let attributes = &mut volume["spec"]["csi"]["volumeAttributes"];
                attributes["authenticationSource"] = json!("pod");
                if let Some(region) = attribute {
                    attributes["stsRegion"] = json!(region);
                }
            })
            .await;
        story.here.run(name, workload(name, "annotated", READ)).await;
    }
    for (name, _, _, region) in cases {
        let asked = format!("https://sts.{region}.amazonaws.com cannot be reached to get temporary keys");
        story.has_event_after(Timestamp::UNIX_EPOCH, name, &asked).await;
        story.mountpoint_pods().await;
        story.here.delete(name).await;
    }
    story.leaves_nothing().await;
}
