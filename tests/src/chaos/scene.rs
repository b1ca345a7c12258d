//! What goes on while parts fail: programs that read, write and wait on one node, and pods and claims that come and go.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use contract::names::DRIVER;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use xtask::cluster::Node;
use xtask::image::TESTPOD;
use xtask::witness::{self, Entry, Outcome, Role};

use super::matrix::Moment;
use crate::story::{LIMIT, Story};
use crate::{Seen, manifest, reached};

/// On the node's disk.
const RECORDS: &str = "/var/lib/witness";
/// Bytes of the files that are read: one request, several, and several parts.
const INPUTS: [usize; 3] = [1000, 300_000, witness::LARGE];

/// What does not happen in time, and what was seen instead.
pub(super) type Stuck = String;

pub(super) struct Scene {
    pub(super) story: Story,
    pub(super) node: Node,
    /// Before the first claim.
    pub(super) buckets: BTreeSet<String>,
    number: AtomicUsize,
}

/// The programs that run all the time: (pod, volume, role). The last shares the mount of the writer, and reads what that wrote.
const LASTING: [(&str, &str, Role); 4] = [
    ("reader", "chaos-reader", Role::Read),
    ("writer", WRITERS, Role::Write),
    ("idle", "chaos-idle", Role::Wait),
    ("sharer", WRITERS, Role::Wait),
];
const WRITERS: &str = "chaos-writer";

impl Scene {
    pub(super) async fn set(node: Node) -> Self {
        let story = Story::alone("chaos").await;
        for length in INPUTS {
            let name = witness::name("input", length);
            let content = witness::content(&name).unwrap();
            story.server.put(story.name, &format!("in/{name}"), &content).unwrap();
        }
        let class = json!({"metadata": {"name": story.name}, "provisioner": DRIVER});
        let classes = Api::<StorageClass>::all(story.here.client.clone());
        classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
        let buckets = story.server.buckets().unwrap().into_iter().collect();
        let scene = Self { story, node, buckets, number: AtomicUsize::new(0) };
        for (pod, volume, role) in LASTING {
            if pod != "sharer" {
                scene.volume(volume, role).await;
            }
            scene.start(pod, volume, role).await;
        }
        scene.goes_on(0).await.unwrap();
        scene
    }

    async fn volume(&self, name: &str, role: Role) {
        let prefix = if role == Role::Write { "out/" } else { "in/" };
        self.story
            .volume(name, |volume| {
                volume["spec"]["mountOptions"] = json!(["allow-delete", format!("prefix={prefix}")]);
            })
            .await;
    }

    /// A writer with a volume of its own.
    async fn start_writer(&self, name: &str) {
        self.volume(name, Role::Write).await;
        self.start(name, name, Role::Write).await;
    }

    /// A pod with a witness, which tolerates that its node fails.
    async fn start(&self, pod: &str, volume: &str, role: Role) {
        let mut spec = manifest::pod(&[volume], "");
        let container = &mut spec["containers"][0];
        container["image"] = json!(TESTPOD);
        let record = format!("/record/{pod}");
        container["command"] = json!(["/bin/xtask", "witness", role.name(), "/data", record]);
        container["securityContext"] = json!({"runAsUser": 0});
        // A reader has no propagation. It is restarted instead.
        if role != Role::Read {
            container["volumeMounts"][0]["mountPropagation"] = json!("HostToContainer");
        }
        let mounts = container["volumeMounts"].as_array_mut().unwrap();
        mounts.push(json!({"name": "record", "mountPath": "/record"}));
        let record = json!({"name": "record", "hostPath": {"path": RECORDS, "type": "DirectoryOrCreate"}});
        spec["volumes"].as_array_mut().unwrap().push(record);
        // As PID 1 of a namespace of its own, it would not be killed by SIGTERM: its volume would stay in use for a grace period.
        spec["shareProcessNamespace"] = json!(true);
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": self.node.name()});
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        self.story.here.run(pod, spec).await;
    }

    /// On the disk, which can be read while the node is off.
    fn record(&self, pod: &str) -> PathBuf {
        self.story.here.cluster.disk(self.node).join(RECORDS.trim_start_matches('/')).join(pod)
    }

    /// Has the waiting program do something.
    fn ask(&self, pod: &str) {
        if let Some(init) = self.story.here.cluster.init_of(self.node) {
            let _ = fs::write(format!("/proc/{init}/root{RECORDS}/{pod}.ask"), "");
        }
    }

    /// Puts it to the logs, which outlive the cluster as evidence.
    pub(super) fn keep(&self, name: &str, content: &[u8]) {
        let folder = self.story.here.cluster.logs(Node::FIRST).join("chaos");
        let kept = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(name), content));
        if let Err(error) = kept {
            eprintln!("cannot keep {name} in {}: {error}", folder.display());
        }
    }

    /// What the witness of the pod has recorded.
    pub(super) fn recorded(&self, pod: &str) -> String {
        fs::read_to_string(self.record(pod)).unwrap_or_default()
    }

    /// The same after this time, in milliseconds since 1970.
    fn entries(&self, pod: &str, after: i64) -> Vec<Entry> {
        self.recorded(pod).lines().filter_map(Entry::parse).filter(|entry| entry.at > after).collect()
    }

    /// The names of all records.
    pub(super) fn records(&self) -> Vec<String> {
        let names = fs::read_dir(self.record("")).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        // Without questions.
        names.filter(|name| !name.contains('.')).collect()
    }

    /// Waits until the witness succeeds in something that it began after this time.
    async fn succeeds(&self, pod: &str, after: i64) -> Result<(), Stuck> {
        let seen = reached(LIMIT, || async {
            if LASTING.iter().any(|(name, _, role)| *name == pod && *role == Role::Wait) {
                self.ask(pod);
            }
            let entries = self.entries(pod, after);
            let done = entries.iter().filter(|entry| matches!(entry.what, Outcome::Done(_))).count();
            // The first may have been about to end.
            Seen::some((done > 1).then_some(()), format!("{:?}", entries.last()))
        });
        match seen.await {
            Ok(()) => Ok(()),
            Err(last) => Err(format!("{pod} makes no progress: {last}, {}", self.status(pod).await)),
        }
    }

    async fn status(&self, pod: &str) -> String {
        let status = self.story.here.pods().get_opt(pod).await.ok().flatten().and_then(|pod| pod.status);
        serde_json::to_string(&status).unwrap()
    }

    /// Waits until every lasting program succeeds again.
    pub(super) async fn goes_on(&self, after: i64) -> Result<(), Stuck> {
        for (pod, ..) in LASTING {
            self.succeeds(pod, after).await?;
        }
        Ok(())
    }

    /// Waits until the API server answers, because it may be the part that failed.
    pub(super) async fn api_answers(&self) -> Result<(), Stuck> {
        reached(LIMIT, || async {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            match self.story.here.client.request_text(request).await {
                Ok(_) => Seen::Yes(()),
                Err(error) => Seen::NotYet(format!("the API server: {error}")),
            }
        })
        .await
    }

    /// Begins what goes on at this moment.
    pub(super) async fn begin(&self, moment: Moment) -> Result<Act, Stuck> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!("chaos-{number}");
        Ok(match moment {
            Moment::Idle | Moment::Reading | Moment::Writing => Act::None,
            Moment::Mounting => {
                self.start_writer(&name).await;
                Act::Mount(name)
            }
            Moment::Unmounting => {
                self.start_writer(&name).await;
                self.succeeds(&name, 0).await?;
                self.story.mountpoint_pods().await;
                self.delete(&name).await;
                Act::Unmount(name)
            }
            Moment::Provisioning => {
                self.create_claims(&name).await;
                Act::Provision(name)
            }
            Moment::Deleting => {
                self.create_claims(&name).await;
                self.bound(&name).await?;
                self.delete_claims(&name).await;
                Act::Delete
            }
        })
    }

    /// Waits until it has succeeded, whatever failed meanwhile, and removes what it made.
    pub(super) async fn end(&self, act: &Act) -> Result<(), Stuck> {
        match act {
            Act::None => {}
            Act::Mount(pod) => {
                self.succeeds(pod, 0).await?;
                self.story.mountpoint_pods().await;
                self.delete(pod).await;
                self.gone(pod).await?;
            }
            Act::Unmount(pod) => self.gone(pod).await?,
            Act::Provision(claims) => {
                self.bound(claims).await?;
                self.delete_claims(claims).await;
                self.unprovisioned().await?;
            }
            Act::Delete => self.unprovisioned().await?,
        }
        Ok(())
    }

    async fn delete(&self, pod: &str) {
        self.story.here.pods().delete(pod, &DeleteParams::default()).await.unwrap();
    }

    async fn gone(&self, pod: &str) -> Result<(), Stuck> {
        let pods = self.story.here.pods();
        let gone = reached(LIMIT, || async {
            match pods.get_opt(pod).await {
                Ok(None) => Seen::Yes(()),
                other => Seen::NotYet(format!("{pod} does not end: {other:?}")),
            }
        });
        gone.await
    }

    /// Ends the lasting programs.
    pub(super) async fn close(&self) -> Result<(), Stuck> {
        for (pod, ..) in LASTING {
            self.delete(pod).await;
        }
        for (pod, ..) in LASTING {
            self.gone(pod).await?;
        }
        Ok(())
    }
}

/// What was begun for a moment, with the name of its pod or claims.
#[derive(Debug)]
pub(super) enum Act {
    None,
    Mount(String),
    Unmount(String),
    Provision(String),
    Delete,
}

pub(super) fn now() -> i64 {
    Timestamp::now().as_millisecond()
}
