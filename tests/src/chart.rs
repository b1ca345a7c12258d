//! The objects that Helm renders from the chart.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::command::run;
use xtask::driver;

use crate::right::{Right, rights};

/// All objects that these values render.
pub fn rendered(cluster: &Cluster, values: &[&str]) -> Vec<Value> {
    let text = driver::render(cluster, None, values).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Installs the objects, except for these kinds.
pub fn apply(cluster: &Cluster, objects: &[Value], except: &[&str]) {
    let wanted = |object: &&Value| !except.iter().any(|kind| object["kind"] == *kind);
    let objects: Vec<&Value> = objects.iter().filter(wanted).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(file.path(), list.to_string()).unwrap();
    let mut kubectl = cluster.kubectl().unwrap();
    run(kubectl.args(["apply", "--server-side", "--force-conflicts", "--filename"]).arg(file.path()))
        .unwrap();
}

/// A role of the chart that is bound to an account.
#[derive(Clone, Debug)]
pub struct Granted {
    pub name: String,
    /// The namespace it applies to; all if none.
    pub namespace: Option<String>,
    pub rights: BTreeSet<Right>,
}

/// The roles that are bound to the account of this name.
pub fn roles(objects: &[Value], account: &str) -> Vec<Granted> {
    let is_bound = |object: &&Value| {
        let subjects = object["subjects"].as_array();
        subjects.is_some_and(|all| all.iter().any(|subject| subject["name"] == account))
    };
    let bindings = objects.iter().filter(is_bound);
    bindings
        .map(|binding| {
            let (to, namespace) = (&binding["roleRef"], &binding["metadata"]["namespace"]);
            let role = objects.iter().find(|role| {
                role["kind"] == to["kind"]
                    && role["metadata"]["name"] == to["name"]
                    && role["metadata"]["namespace"] == *namespace
            });
            let role = role.unwrap_or_else(|| panic!("the role of {binding} is not in the chart"));
            Granted {
                name: role["metadata"]["name"].as_str().unwrap().to_owned(),
                namespace: namespace.as_str().map(str::to_owned),
                rights: rights(&role["rules"]),
            }
        })
        .collect()
}
