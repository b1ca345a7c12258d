//! `cargo xtask sbom`: the crates that the shipped programs are made of, and the Debian packages of the libraries in the images, in
//! the format `CycloneDX`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::cargo::{SHIPPED, cargo};
use crate::command::capture;

/// What compiles and links on the machines that the images are for; the list is the same for both of them.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// With the packages that images name in these folders.
pub fn of_images(cache: &Cache, packages: &[PathBuf]) -> Result<String> {
    let mut list = of_programs(cache)?;
    let mut libraries = BTreeMap::new();
    for folder in packages {
        for file in
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?.flatten()
        {
            let library = library(&fs::read_to_string(file.path())?);
            let library = library.with_context(|| format!("{} is no package", file.path().display()))?;
            libraries.insert(library["purl"].to_string(), library);
        }
    }
    if let Some(components) = list["components"].as_array_mut() {
        components.extend(libraries.into_values());
    }
    Ok(format!("{list:#}\n"))
}

fn of_programs(cache: &Cache) -> Result<Value> {
    let mut metadata = cargo(cache);
    metadata.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]);
    list(&serde_json::from_str(&capture(&mut metadata)?)?)
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

/// Of a file in `/var/lib/dpkg/status.d` of an image.
fn library(status: &str) -> Option<Value> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let (name, version, architecture) = (field("Package")?, field("Version")?, field("Architecture")?);
    // Of a version, a package URL writes these two in another way.
    let escaped = version.replace('+', "%2B").replace(':', "%3A");
    let purl = format!("pkg:deb/debian/{name}@{escaped}?arch={architecture}");
    Some(json!({"type": "library", "name": name, "version": version, "purl": purl}))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and versions of components.
    fn found(list: &Value) -> BTreeMap<&str, Vec<&str>> {
        let mut found = BTreeMap::<&str, Vec<&str>>::new();
        for component in array(&list["components"]) {
            let text = |field: &str| component[field].as_str().unwrap();
            found.entry(text("name")).or_default().push(text("version"));
        }
        found
    }

    #[test]
    fn the_programs_of_this_checkout_are_made_of_what_is_locked() {
        let list = of_programs(&Cache::open().unwrap()).unwrap();
        let locked = include_str!("../../Cargo.lock");
        let found = found(&list);
        for name in ["kube", "mountpoint-s3-crt-sys", "mountpoint-s3-fs", "rustls", "tokio"] {
            for version in found.get(name).unwrap_or_else(|| panic!("{name} is missing")) {
                let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
                assert!(locked.contains(&entry), "{name} {version}");
            }
        }
        for name in ["proptest", "bindgen", "xtask", "mountpoint"] {
            assert!(!found.contains_key(name), "{name} is not in a program, or is our own");
        }
        assert!(array(&list["components"]).all(|one| one["licenses"].is_array()), "{list}");
    }

    #[test]
    fn the_packages_of_images_are_listed_once() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for folder in &folders {
            let status = "Package: libc6\nVersion: 2:2.36-9+deb12u10\nArchitecture: amd64\nSource: glibc\n";
            fs::write(folder.path().join("libc6"), status).unwrap();
        }
        let packages: Vec<PathBuf> = folders.iter().map(|folder| folder.path().to_owned()).collect();
        let cache = Cache::open().unwrap();
        let list: Value = serde_json::from_str(&of_images(&cache, &packages).unwrap()).unwrap();
        assert_eq!(found(&list)["libc6"], ["2:2.36-9+deb12u10"]);
        let package = array(&list["components"]).last().unwrap();
        assert_eq!(package["purl"], "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u10?arch=amd64");
        fs::write(folders[0].path().join("odd"), "no package").unwrap();
        assert!(of_images(&cache, &packages).unwrap_err().to_string().contains("odd is no package"));
    }

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
