//! A volume's attributes and mount options.

use contract::authentication::SecretPresence;
use contract::volume_plan::VolumePlan;
use s3_csi_tests::Stage;
use serde_json::{Value, json};

use super::{VOLUMES, create, in_force, texts, volume};

/// With these words, or not at all.
async fn expect_warning(stage: &Stage, attributes: &Value, options: &[&str], words: Option<&str>) {
    let warnings = create(stage, VOLUMES, &volume(attributes, options)).await.unwrap();
    let warnings = warnings.join("\n");
    match words {
        None => assert_eq!(warnings, "", "{attributes} {options:?}"),
        Some(words) => assert!(warnings.contains(words), "{attributes} {options:?}: {warnings}"),
    }
    // The node would refuse it, or ignore an option, in the same cases.
    let plan = VolumePlan::parse(&texts(attributes), SecretPresence::Absent, options);
    let is_wrong = plan.is_err() || plan.is_ok_and(|plan| !plan.ignored.is_empty());
    assert_eq!(is_wrong, words.is_some(), "{attributes} {options:?}");
}

#[tokio::test]
async fn a_volume_with_a_mistake_is_warned_about() {
    let stage = Stage::set("admission-volumes").await;
    in_force(&stage, VOLUMES, &volume(&json!({}), &[])).await;
    let bucket = json!({"bucketName": "bucket"});
    for (attributes, options, words) in [
        (&bucket, &["allow-delete", "--prefix a/", "uid=1000", "d"][..], None),
        (&bucket, &["Allow-Delete", "PREFIX = a/", "foreground", "-", " "], None),
        (
            &json!({
                "bucketName": "bucket", "authenticationSource": "driver", "mountpointEnv.NO_PROXY": "a",
                "storage.kubernetes.io/csiProvisionerIdentity": "1-s3", "dynamicProvisioning": "true",
            }),
            &[],
            None,
        ),
        (&json!({"bucket": "b"}), &[], Some("volume attribute `bucketName` is missing")),
        (&json!({"bucketName": ""}), &[], Some("volume attribute `bucketName` is missing")),
        (
            &bucket,
            &["allow-deletes"],
            Some("unknown mount options, with which no pod is started: allow-deletes;"),
        ),
        (
            &bucket,
            &["--Endpoint-URL=http://a"],
            Some("mount options without effect: endpoint-url; remove them"),
        ),
        (&bucket, &["allow-delete=true"], Some("mount options that take no value: allow-delete=true;")),
        (&bucket, &["--uid"], Some("mount options without a value: --uid;")),
        (&bucket, &["allow-root", "allow-other"], Some("mutually exclusive: allow-root, allow-other;")),
        (&bucket, &["no-log", "-d"], Some("mutually exclusive: no-log, d;")),
        (
            &json!({"bucketName": "bucket", "authenticationSource": "Secret"}),
            &[],
            Some("unknown `authenticationSource` \"Secret\": use driver, secret, pod"),
        ),
        (
            &json!({"bucketName": "bucket", "authenticationSource": "secret"}),
            &[],
            Some("`authenticationSource: secret` without `nodePublishSecretRef`"),
        ),
    ] {
        expect_warning(&stage, attributes, options, words).await;
    }
    // The driver does not read it, so only the policy can find this one.
    let misspelt = volume(&json!({"bucketName": "bucket", "authentificationSource": "secret"}), &[]);
    let warnings = create(&stage, VOLUMES, &misspelt).await.unwrap().join("\n");
    assert!(
        warnings.contains("unknown volume attributes, which have no effect: authentificationSource;"),
        "{warnings}"
    );
    // Volumes of other drivers are none of its business.
    let mut other = volume(&json!({"share": "a"}), &["nfsvers=4"]);
    other["spec"]["csi"]["driver"] = json!("nfs.example.com");
    assert_eq!(create(&stage, VOLUMES, &other).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_value_that_the_driver_refuses_is_warned_about() {
    let stage = Stage::set("admission-values").await;
    in_force(&stage, VOLUMES, &volume(&json!({}), &[])).await;
    let bucket = json!({"bucketName": "bucket"});
    for (attributes, options, words) in [
        (
            &bucket,
            &["--UID=x"][..],
            Some(
                "invalid mount options, with which no pod is started: uid=x: it must be a number from 1 to 4294967295;",
            ),
        ),
        (&bucket, &["prefix a"], Some("prefix a: it must end in '/'")),
        (&bucket, &["prefix = "], None),
        (&bucket, &["gid=0"], Some("gid=0: it must be a number from 1")),
        (&bucket, &["dir-mode 999", "read-part-size=1024"], Some("read-part-size=1024: it must be")),
        (&bucket, &["region=a.example/#"], Some("region=a.example/#: regions have")),
        (
            &json!({"bucketName": "s3://bucket"}),
            &[],
            Some("`bucketName` \"s3://bucket\": it must be the name of a bucket"),
        ),
        (
            &json!({"bucketName": "arn:aws:s3-outposts:us-east-1:1:outpost/op-1/accesspoint/a"}),
            &[],
            Some("invalid volume attributes, with which no pod is started: `bucketName`"),
        ),
        // A class may have blanks around its values, a volume may not.
        (&json!({"bucketName": " bucket "}), &[], Some("`bucketName` \" bucket \": it must be the name")),
        (&json!({"bucketName": " "}), &[], Some("`bucketName` \" \": it must be the name")),
        (
            &json!({"bucketName": "bucket", "stsRegion": "eu-west-1 "}),
            &[],
            Some("`stsRegion` \"eu-west-1 \": regions have"),
        ),
        (
            &json!({"bucketName": "bucket", "stsRegion": "a/b"}),
            &[],
            Some("`stsRegion` \"a/b\": regions have"),
        ),
        (
            &json!({"bucketName": "My_Bucket", "stsRegion": ""}),
            &[
                "dir-mode 0770",
                "metadata-ttl=indefinite",
                "region=",
                "prefix=",
                "part-size=05242880",
                "cache",
            ],
            None,
        ),
        (
            &json!({"bucketName": "arn:aws:s3:eu-west-1:111122223333:accesspoint/mine", "stsRegion": "eu-west-1"}),
            &[
                "sse  =  aws:kms",
                "sse-kms-key-id=arn:aws:kms:eu-1:1:key/k",
                "ca-bundle /etc/s3-csi/authority/a.pem",
            ],
            None,
        ),
    ] {
        expect_warning(&stage, attributes, options, words).await;
    }
}
