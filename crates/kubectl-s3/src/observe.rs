//! Reads the cluster. What this user may not read is noted and left out: the answer is then drawn from the rest.

pub mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use contract::attachment::MountpointS3PodAttachment;
use contract::names::MOUNTPOINT_NAMESPACE;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume, Pod, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Config, CustomResourceExt as _, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::answer::answer;
use crate::error::PluginError;
use crate::flags::ClusterFlags;
use crate::installation::{CONTROLLER, Installation, NODE_SERVICE, Role};
use crate::readable::Readable;
use crate::snapshot::Snapshot;
use crate::volume::VolumeFacts;
use crate::workload::mountpoint_pod;
use secrets::Secrets;

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
    pub async fn snapshot(&self, scope: Scope<'_>, which: Secrets<'_>) -> Snapshot {
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
        let mut deployments: Vec<Deployment> = unreadable.or_note(Readable::DriverWorkloads, deployments);
        let mut daemon_sets: Vec<DaemonSet> = unreadable.or_note(Readable::DriverWorkloads, daemon_sets);
        let mut controllers = unreadable.or_note(Readable::DriverPods, controllers);
        let mut node_services = unreadable.or_note(Readable::DriverPods, node_services);
        let template = |template: &PodTemplateSpec, role: Role| role.is_run_by(template.spec.as_ref());
        deployments.retain(|it| it.spec.as_ref().is_some_and(|it| template(&it.template, Role::Controller)));
        daemon_sets.retain(|it| it.spec.as_ref().is_some_and(|it| template(&it.template, Role::Node)));
        controllers.retain(|pod| Role::Controller.is_run_by(pod.spec.as_ref()));
        node_services.retain(|pod| Role::Node.is_run_by(pod.spec.as_ref()));
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
                .filter_map(mountpoint_pod)
                .collect(),
            controllers,
            node_services,
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
        snapshot.secrets = secrets::states(client, secrets::needed(&snapshot, which)).await;
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

    /// The certificate authorities that Mountpoint Pods trust, if they have their own.
    pub async fn authorities(&self, installation: &Installation) -> Option<String> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &installation.mountpoint_namespace);
        let map = answer(maps.get_opt(installation.authorities.as_deref()?)).await.ok()??;
        map.data?.remove("ca-bundle.crt")
    }
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
