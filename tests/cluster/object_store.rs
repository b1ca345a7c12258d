//! The S3 server, accessed as pods and the driver access it.

use s3_csi_tests::Inside;
use serde_json::json;
use xtask::image::TESTPOD;
use xtask::s3::{ALICE, BOB, Client, ENDPOINT, ENDPOINT_TLS, Refused};

fn refusal<T: std::fmt::Debug>(outcome: anyhow::Result<T>) -> (u16, String) {
    let refused: Refused = outcome.unwrap_err().downcast().expect("an error response of the server");
    (refused.status, refused.code)
}

#[test]
fn accounts_do_not_see_each_others_buckets() {
    let (alice, bob) = (Client::new(ENDPOINT, ALICE).unwrap(), Client::new(ENDPOINT, BOB).unwrap());
    alice.create_bucket("alice-private").unwrap();
    alice.put("alice-private", "a/key with spaces & signs", b"secret").unwrap();
    assert_eq!(alice.objects("alice-private", "a/").unwrap(), ["a/key with spaces & signs"]);

    assert!(!bob.buckets().unwrap().contains(&"alice-private".to_owned()));
    let denied = (403, "AccessDenied".to_owned());
    assert_eq!(refusal(bob.objects("alice-private", "")), denied);
    assert_eq!(refusal(bob.get("alice-private", "a/key with spaces & signs")), denied);
    assert_eq!(refusal(bob.put("alice-private", "b", b"")), denied);
    assert_eq!(refusal(bob.create_bucket("alice-private")), (409, "BucketAlreadyExists".to_owned()));

    alice.delete("alice-private", "a/key with spaces & signs").unwrap();
    alice.delete_bucket("alice-private").unwrap();
}

#[test]
fn wrong_keys_are_refused() {
    let wrong_secret = Client::with_keys(ENDPOINT, ALICE.access_key, BOB.secret_key, None).unwrap();
    assert_eq!(refusal(wrong_secret.buckets()), (403, "SignatureDoesNotMatch".to_owned()));
    let unknown_key = Client::with_keys(ENDPOINT, "AKIANOBODY", ALICE.secret_key, None).unwrap();
    assert_eq!(refusal(unknown_key.buckets()), (403, "InvalidAccessKeyId".to_owned()));
}

#[tokio::test]
async fn pods_reach_both_ports_by_the_nodes_name_for_it() {
    let here = Inside::join("object-store").await;
    let authority = std::fs::read_to_string(here.cluster.authority()).unwrap();
    let on_the_node =
        Client::with_keys(ENDPOINT_TLS, ALICE.access_key, ALICE.secret_key, Some(&here.cluster.authority()));
    let on_the_node = on_the_node.unwrap();
    on_the_node.create_bucket("from-pods").unwrap();
    on_the_node.put("from-pods", "word", b"heard").unwrap();

    let map = json!({"metadata": {"name": "authority"}, "data": {"ca.crt": authority}});
    kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(here.client.clone(), &here.namespace)
        .create(&kube::api::PostParams::default(), &serde_json::from_value(map).unwrap())
        .await
        .unwrap();
    for (name, endpoint) in [("plain", ENDPOINT), ("tls", ENDPOINT_TLS)] {
        let container = json!({
            "name": "main", "image": TESTPOD, "imagePullPolicy": "Never", "args": ["from-pods", "word"],
            "volumeMounts": [{"name": "authority", "mountPath": "/authority"}],
            "env": [
                {"name": "AWS_ENDPOINT_URL", "value": endpoint},
                {"name": "AWS_ACCESS_KEY_ID", "value": ALICE.access_key},
                {"name": "AWS_SECRET_ACCESS_KEY", "value": ALICE.secret_key},
                {"name": "AWS_CA_BUNDLE", "value": "/authority/ca.crt"},
            ],
        });
        let volumes = json!([{"name": "authority", "configMap": {"name": "authority"}}]);
        here.run(name, json!({"restartPolicy": "Never", "containers": [container], "volumes": volumes}))
            .await;
    }
    for name in ["plain", "tls"] {
        here.phase(name, "Succeeded").await;
        assert_eq!(here.log(name).await, "heard");
        here.delete(name).await;
    }
    on_the_node.delete("from-pods", "word").unwrap();
    on_the_node.delete_bucket("from-pods").unwrap();
}
