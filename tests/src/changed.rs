//! A story that changes the driver's values or the node for all others restores them when it ends, even if it fails.

use anyhow::Result;
use xtask::cluster::Cluster;
use xtask::command::run;
use xtask::driver;

/// Undone when dropped. Keep the story until then, because no other story may begin before.
#[must_use]
pub struct Changed {
    what: &'static str,
    undo: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
}

impl Changed {
    /// If `change` fails half-way, what it changed is undone as well.
    pub fn make(
        what: &'static str,
        change: impl FnOnce() -> Result<()>,
        undo: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Self {
        let changed = Self { what, undo: Some(Box::new(undo)) };
        change().unwrap();
        changed
    }

    pub fn undo(mut self) {
        self.undo.take().expect("it is undone once")().unwrap();
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.undo.take().map(|undo| undo()) {
            eprintln!("{} is still changed: {error:#}", self.what);
        }
    }
}

/// The driver with other values.
pub fn values(cluster: &Cluster, values: &[&str]) -> Changed {
    let own = cluster.clone();
    Changed::make("the driver", || driver::install(cluster, values), move || driver::install(&own, &[]))
}

/// The driver without its controller.
pub fn without_controller(cluster: &Cluster) -> Changed {
    let scale = |cluster: &Cluster, replicas: &str| {
        kubectl(cluster, &["scale", "deployment/s3-csi-controller", &format!("--replicas={replicas}")])?;
        kubectl(cluster, &["rollout", "status", "deployment/s3-csi-controller", "--timeout=240s"])
    };
    let own = cluster.clone();
    let stop = || {
        scale(cluster, "0")?;
        kubectl(
            cluster,
            &["wait", "--for=delete", "pod", "--selector=app=s3-csi-controller", "--timeout=240s"],
        )
    };
    Changed::make("the controller", stop, move || scale(&own, "1"))
}

/// The driver without its node service, on every node.
pub fn without_node_service(cluster: &Cluster) -> Changed {
    let select = |cluster: &Cluster, value: &str| {
        let patch =
            format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"nowhere":{value}}}}}}}}}}}"#);
        kubectl(cluster, &["patch", "daemonset/s3-csi-node", "--type=merge", "--patch", &patch])
    };
    let own = cluster.clone();
    let stop = || {
        select(cluster, r#""at-all""#)?;
        kubectl(cluster, &["wait", "--for=delete", "pod", "--selector=app=s3-csi-node", "--timeout=240s"])
    };
    let start = move || {
        select(&own, "null")?;
        kubectl(&own, &["rollout", "status", "daemonset/s3-csi-node", "--timeout=240s"])
    };
    Changed::make("the node service", stop, start)
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    run(cluster.kubectl()?.args(["--namespace", driver::NAMESPACE]).args(arguments))
}
