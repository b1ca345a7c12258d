//! `cargo xtask sbom`: the crates that the shipped programs are made of, in the format `CycloneDX`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::cargo::{SHIPPED, cargo};
use crate::command::capture;

/// What compiles and links on the machines that the images are for; the list is the same for both of them.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

pub fn of_programs(cache: &Cache) -> Result<String> {
    let mut metadata = cargo(cache);
    metadata.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]);
    let list = list(&serde_json::from_str(&capture(&mut metadata)?)?)?;
    Ok(format!("{list:#}\n"))
}

/// From the output of `cargo metadata`.
fn list(metadata: &Value) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> =
        array(&metadata["packages"]).filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes: BTreeMap<&str, &Value> =
        array(&metadata["resolve"]["nodes"]).filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let is_shipped = |package: &Value| SHIPPED.iter().any(|(name, _)| package["name"] == *name);
    let mut waiting: Vec<&str> = packages
        .iter()
        .filter(|(_, package)| package["source"].is_null() && is_shipped(package))
        .map(|(id, _)| *id)
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if found.insert(id) {
            let node = nodes.get(id).with_context(|| format!("{id} is not resolved"))?;
            // Crates that only build or test are not in a program.
            let linked = array(&node["deps"])
                .filter(|dependency| array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null()));
            waiting.extend(linked.filter_map(|dependency| dependency["pkg"].as_str()));
        }
    }
    let components: Vec<Value> = found
        .iter()
        .map(|id| packages[id])
        .filter(|package| !package["source"].is_null())
        .map(component)
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "s3-csi", "version": env!("CARGO_PKG_VERSION")},
        },
        "components": components,
    }))
}

fn component(package: &Value) -> Value {
    let (name, version) =
        (package["name"].as_str().unwrap_or_default(), package["version"].as_str().unwrap_or_default());
    let mut component = json!({
        "type": "library", "name": name, "version": version, "purl": format!("pkg:cargo/{name}@{version}"),
    });
    if let Some(licence) = package["license"].as_str() {
        // `/` is an old way of writing `OR`.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    component
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_into_a_shipped_program_is_listed() {
        let package = |id: &str, source: Value| json!({"id": id, "name": id, "version": "1.0.0", "source": source, "license": "MIT/Apache-2.0"});
        let on = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let registry = json!("registry");
        let metadata = json!({
            "packages": [
                package("node", Value::Null), package("tests", Value::Null), package("linked", registry.clone()),
                package("deeper", registry.clone()), package("builds", registry.clone()), package("tested", registry),
            ],
            "resolve": {"nodes": [
                {"id": "node", "deps": [on("linked", Value::Null), on("builds", json!("build"))]},
                {"id": "tests", "deps": [on("tested", Value::Null)]},
                {"id": "linked", "deps": [on("deeper", Value::Null), on("tested", json!("dev"))]},
                {"id": "deeper", "deps": []},
            ]},
        });
        let list = list(&metadata).unwrap();
        let names: Vec<&str> = array(&list["components"]).filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, ["deeper", "linked"]);
        assert_eq!(list["components"][0]["purl"], "pkg:cargo/deeper@1.0.0");
        assert_eq!(list["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }
}
