use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config};
use s3_csi_tests::Inside;
use serde_json::json;

/// The kubeconfig's server, without any credentials.
async fn impersonating(here: &Inside, user: &str) -> Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(here.cluster.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
        .await
        .unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn it_is_the_version_that_was_asked_for() {
    let here = Inside::join("version").await;
    let version = here.client.apiserver_version().await.unwrap();
    let asked = here.cluster.plan().unwrap().kubernetes.to_string();
    assert_eq!(format!("{}.{}", version.major, version.minor), asked);
}

#[tokio::test]
async fn authorization_is_in_force() {
    let here = Inside::join("authorization").await;
    let stranger = impersonating(&here, "stranger").await;
    let error = Api::<Namespace>::all(stranger).list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
}

#[tokio::test]
async fn objects_stay_as_they_are_written() {
    let here = Inside::join("inert").await;
    let pod = json!({
        "metadata": {"name": "still"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "none"}]},
    });
    // Without controllers no namespace has a service account, and admission asks for one.
    let account = json!({"metadata": {"name": "default"}});
    Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(here.client.clone(), &here.namespace)
        .create(&PostParams::default(), &serde_json::from_value(account).unwrap())
        .await
        .unwrap();
    let pods: Api<Pod> = here.pods();
    let created = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let found = pods.get("still").await.unwrap();
    assert_eq!(created.metadata.resource_version, found.metadata.resource_version);
    assert_eq!(found.spec.unwrap().node_name, None);
}
