//! Reads the cluster. What this user may not read is noted and left out: the answer is then drawn from the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::{DRIVER, MOUNTPOINT_NAMESPACE};
use contract::text::causes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Config, CustomResourceExt as _, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::class;
use crate::error::PluginError;
use crate::flags::ClusterFlags;
use crate::installation::{CONTROLLER, Installation, NODE_SERVICE};
use crate::readable::Readable;
use crate::secret::{self, Renamed, SecretName, SecretState, Values};
use crate::snapshot::Snapshot;
use crate::volume::VolumeFacts;
use crate::workload::MountpointFacts;

/// A list of thousands of objects takes seconds; a server that is away never answers.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// Where events of objects without a namespace are.
const CLUSTER_EVENTS: &str = "default";

/// A connection, and the namespace that the user works in.
pub struct Observer {
    pub client: Client,
    pub namespace: String,
}

/// Whose workloads are read.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    Namespace(&'a str),
    Cluster,
}

impl Scope<'_> {
    fn api<K>(self, client: &Client) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match self {
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
            Self::Cluster => Api::all(client.clone()),
        }
    }
}

impl Observer {
    pub async fn connect(flags: &ClusterFlags) -> Result<Self, PluginError> {
        let options = KubeConfigOptions { context: flags.context.clone(), ..KubeConfigOptions::default() };
        let config = match &flags.kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?,
            None => Config::from_kubeconfig(&options).await?,
        };
        let namespace = flags.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self { client: Client::try_from(config).map_err(PluginError::Client)?, namespace })
    }

    /// The pod that the user asks about.
    pub async fn pod(&self, name: &str) -> Result<Pod, PluginError> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let found = answer(pods.get_opt(name)).await;
        let found = found.map_err(|error| PluginError::Read { what: "the pod", error })?;
        let (namespace, name) = (self.namespace.clone(), name.to_owned());
        found.ok_or(PluginError::NoPod { namespace, name })
    }

    /// Everything about the driver, and the workloads of the scope.
    pub async fn snapshot(&self, scope: Scope<'_>) -> Snapshot {
        let client = &self.client;
        let named = |name: &str| ListParams::default().fields(&format!("metadata.name={name}"));
        let labelled = |name: &str| ListParams::default().labels(&format!("app={name}"));
        let all = ListParams::default();
        let (deployments, daemon_sets, controllers, node_services) = futures::join!(
            list(Api::all(client.clone()), named(CONTROLLER)),
            list(Api::all(client.clone()), named(NODE_SERVICE)),
            list::<Pod>(Api::all(client.clone()), labelled(CONTROLLER)),
            list::<Pod>(Api::all(client.clone()), labelled(NODE_SERVICE)),
        );
        let mut unreadable = Unreadable::default();
        let deployments = unreadable.or_note(Readable::DriverWorkloads, deployments);
        let daemon_sets = unreadable.or_note(Readable::DriverWorkloads, daemon_sets);
        let installation = Installation::of(&deployments, &daemon_sets);
        let mountpoint_namespace = installation.as_ref().map(|it| it.mountpoint_namespace.clone());
        let mountpoint_namespace = mountpoint_namespace.unwrap_or_else(|| MOUNTPOINT_NAMESPACE.to_owned());
        let (pods, claims, volumes, classes, attachments, mountpoint_pods) = futures::join!(
            list::<Pod>(scope.api(client), all.clone()),
            list(scope.api(client), all.clone()),
            list::<PersistentVolume>(Api::all(client.clone()), all.clone()),
            list(Api::all(client.clone()), all.clone()),
            list::<DeserializeGuard<MountpointS3PodAttachment>>(Api::all(client.clone()), all.clone()),
            list::<Pod>(Api::namespaced(client.clone(), &mountpoint_namespace), all.clone()),
        );
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        let definition = MountpointS3PodAttachment::crd_name();
        let (nodes, csi_nodes, csi_drivers, definition, events) = futures::join!(
            list(Api::all(client.clone()), all.clone()),
            list(Api::all(client.clone()), all.clone()),
            list(Api::all(client.clone()), all.clone()),
            answer(definitions.get_opt(definition)),
            self.events(scope, &mountpoint_namespace),
        );
        let volumes = unreadable.or_note(Readable::Volumes, volumes);
        let (ours, foreign): (Vec<_>, Vec<_>) = volumes
            .iter()
            .map(|volume| VolumeFacts::of(volume).ok_or_else(|| volume.name_any()))
            .partition(Result::is_ok);
        let guarded = unreadable.or_note(Readable::Attachments, attachments);
        let (attachments, malformed) =
            guarded.into_iter().fold((Vec::new(), Vec::new()), |mut sorted, object| {
                match object.0 {
                    Ok(attachment) => sorted.0.push(attachment),
                    Err(invalid) => sorted.1.push((invalid.metadata.name.unwrap_or_default(), invalid.error)),
                }
                sorted
            });
        let mut snapshot = Snapshot {
            now: Timestamp::now(),
            pods: unreadable.or_note(Readable::Pods, pods),
            claims: unreadable.or_note(Readable::Claims, claims),
            volumes: ours.into_iter().filter_map(Result::ok).collect(),
            foreign_volumes: foreign.into_iter().filter_map(Result::err).collect(),
            classes: unreadable.or_note(Readable::Classes, classes),
            attachments,
            malformed_attachments: malformed,
            mountpoint_pods: unreadable
                .or_note(Readable::MountpointPods, mountpoint_pods)
                .iter()
                .filter_map(MountpointFacts::of)
                .collect(),
            controllers: unreadable.or_note(Readable::DriverPods, controllers),
            node_services: unreadable.or_note(Readable::DriverPods, node_services),
            nodes: unreadable.or_note(Readable::Nodes, nodes),
            csi_nodes: unreadable.or_note(Readable::CsiNodes, csi_nodes),
            csi_drivers: unreadable.or_note(Readable::CsiDrivers, csi_drivers),
            definition: unreadable.or_note(Readable::Definition, definition),
            events: unreadable.or_note(Readable::Events, events),
            mountpoint_namespace,
            deployments,
            daemon_sets,
            secrets: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        };
        for (name, renamed) in needed(&snapshot, installation.as_ref()) {
            let state = match self.secret(&name).await {
                Ok(Some(secret)) => SecretState::of(&name, &secret, &renamed),
                Ok(None) => SecretState::Missing,
                Err(error) => SecretState::Unreadable(error),
            };
            snapshot.secrets.insert(name, state);
        }
        snapshot.unreadable = unreadable.0;
        snapshot
    }

    /// Of the workloads, of the Mountpoint Pods, and of what has no namespace.
    async fn events(&self, scope: Scope<'_>, mountpoint_namespace: &str) -> Result<Vec<Event>, String> {
        let places = match scope {
            Scope::Cluster => return list(Api::all(self.client.clone()), ListParams::default()).await,
            Scope::Namespace(namespace) => BTreeSet::from([namespace, mountpoint_namespace, CLUSTER_EVENTS]),
        };
        let mut found = Vec::new();
        for place in places {
            let events = list(Api::namespaced(self.client.clone(), place), ListParams::default()).await;
            // Only those of the workloads are vital.
            match (events, scope) {
                (Err(error), Scope::Namespace(own)) if own == place => return Err(error),
                (events, _) => found.extend(events.unwrap_or_default()),
            }
        }
        Ok(found)
    }

    async fn secret(&self, name: &SecretName) -> Result<Option<Secret>, String> {
        answer(Api::<Secret>::namespaced(self.client.clone(), &name.namespace).get_opt(&name.name)).await
    }

    /// The values of all Secrets with keys that the snapshot knows of, for the scrubber.
    pub async fn secret_values(&self, snapshot: &Snapshot) -> Values {
        let mut values = Vec::new();
        for name in snapshot.secrets.keys() {
            if let Ok(Some(secret)) = self.secret(name).await {
                values.extend(secret::values(&secret));
            }
        }
        Values(values)
    }

    /// The certificate authorities that Mountpoint Pods trust, if they have their own.
    pub async fn authorities(&self, installation: &Installation) -> Option<String> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &installation.mountpoint_namespace);
        let map = answer(maps.get_opt(installation.authorities.as_deref()?)).await.ok()??;
        map.data?.remove("ca-bundle.crt")
    }
}

/// The Secrets that workloads are going to need, and how their keys are renamed.
fn needed(snapshot: &Snapshot, installation: Option<&Installation>) -> BTreeMap<SecretName, Renamed> {
    let own = snapshot.volumes.iter().filter_map(|volume| volume.secret.clone());
    let ours = snapshot.classes.iter().filter(|class| class.provisioner == DRIVER);
    let own = own.chain(ours.flat_map(class::secrets)).map(|name| (name, Renamed::new()));
    own.chain(installation.into_iter().flat_map(|installation| installation.keys.values().cloned())).collect()
}

#[derive(Default)]
struct Unreadable(BTreeMap<Readable, String>);

impl Unreadable {
    fn or_note<T: Default>(&mut self, what: Readable, found: Result<T, String>) -> T {
        found.unwrap_or_else(|error| {
            self.0.insert(what, error);
            T::default()
        })
    }
}

async fn list<K>(api: Api<K>, params: ListParams) -> Result<Vec<K>, String>
where
    K: Clone + Debug + DeserializeOwned,
{
    answer(api.list(&params)).await.map(|list| list.items)
}

/// With the API server's own words, and within a time.
pub(crate) async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER_WITHIN, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(causes(&error)),
        Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_its_causes() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(std::io::Error::other(refused)));
        let text = causes(&error);
        assert!(text.contains("connection refused"), "{text}");
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    }
}
