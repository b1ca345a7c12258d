//! Workflows cannot run here. What they refer to exists: commands, files, jobs, images of the chart.

use std::fs;

use serde_json::Value;

use super::{files_below, root};

fn workflows() -> Vec<(String, Value)> {
    let files = files_below(&root().join(".github/workflows"), "yaml").into_iter();
    let read = |file: &std::path::Path| fs::read_to_string(file).unwrap();
    files
        .map(|file| {
            (
                file.file_name().unwrap().to_string_lossy().into_owned(),
                serde_saphyr::from_str(&read(&file)).unwrap(),
            )
        })
        .collect()
}

fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Value)> {
    workflow["jobs"].as_object().unwrap().iter()
}

/// The scripts of all steps.
fn scripts(workflow: &Value) -> String {
    let steps = jobs(workflow).flat_map(|(_, job)| job["steps"].as_array().unwrap());
    let scripts = steps.filter_map(|step| step["run"].as_str());
    scripts.collect::<Vec<_>>().join("\n")
}

#[test]
fn jobs_need_jobs_that_exist_and_end() {
    for (file, workflow) in workflows() {
        assert!(workflow["permissions"].is_object(), "{file} has more permissions than it needs");
        for (name, job) in jobs(&workflow) {
            let needs = match &job["needs"] {
                Value::String(one) => vec![one.as_str()],
                many => many.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
            };
            assert!(
                needs.iter().all(|other| workflow["jobs"][other].is_object()),
                "{file}: {name} needs {needs:?}"
            );
            assert!(
                job["timeout-minutes"].is_number() || name == "version",
                "{file}: {name} may run for ever"
            );
        }
    }
}

#[test]
fn commands_of_xtask_and_files_exist() {
    let main = fs::read_to_string(root().join("xtask/src/main.rs")).unwrap();
    let mut checked = 0;
    for (file, workflow) in workflows() {
        let scripts = scripts(&workflow);
        for call in scripts.split("cargo xtask ").skip(1) {
            let name = call.split([' ', ')', '\n']).next().unwrap();
            let variant = name[..1].to_uppercase() + &name[1..];
            let known = ["(", ",", " {"].iter().any(|end| main.contains(&format!("\n    {variant}{end}")));
            assert!(known, "{file}: no command `cargo xtask {name}`");
            checked += 1;
        }
        let paths = scripts
            .split([' ', '\n', '"'])
            .filter(|word| word.starts_with("charts/") || *word == "Cargo.toml");
        for path in paths {
            assert!(root().join(path).exists(), "{file}: {path}");
            checked += 1;
        }
    }
    assert!(checked > 8, "only {checked} checked");
}

/// The release pushes the images that the chart names, built by targets that exist, and writes the registry into the chart.
#[test]
fn the_release_pushes_the_images_of_the_chart() {
    let (_, release) = workflows().into_iter().find(|(file, _)| file == "release.yaml").unwrap();
    let scripts = scripts(&release);
    let text = fs::read_to_string(root().join("charts/s3-csi/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    for (image, target) in [(&values["image"], "driver"), (&values["mountpointPod"]["image"], "mounter")] {
        let name = format!("\"$REGISTRY/{}:", image["repository"].as_str().unwrap());
        for command in [
            format!("docker build --target {target} --tag {name}"),
            format!("docker push {name}"),
            format!("create --tag {name}"),
        ] {
            assert!(scripts.contains(&command), "`{command}` is not in the release");
        }
        assert!(dockerfile.contains(&format!(" AS {target}\n")), "{target}");
    }
    assert_eq!(text.matches("containerRegistry: \"\"").count(), 1, "the release replaces this text");
    assert!(scripts.contains("s|containerRegistry: \\\"\\\"|"), "{scripts}");
}

/// What krew reads of the manifest: <https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/>.
#[test]
fn krew_gets_the_archives_of_the_release() {
    let folder = tempfile::tempdir().unwrap();
    let archives = ["amd64", "arm64"].map(|one| folder.path().join(format!("kubectl-s3-linux-{one}.tar.gz")));
    for archive in &archives {
        fs::write(archive, "abc").unwrap();
    }
    let text = xtask::krew::manifest("https://host/owner/project/releases/download/v1", &archives).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&"Plugin".into(), &"s3".into()));
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(spec["homepage"], "https://host/owner/project");
    // Longer ones are refused by krew's own index.
    assert!(spec["shortDescription"].as_str().unwrap().len() <= 50, "{text}");
    for (platform, architecture) in spec["platforms"].as_array().unwrap().iter().zip(["amd64", "arm64"]) {
        let labels = &platform["selector"]["matchLabels"];
        assert_eq!((&labels["os"], &labels["arch"]), (&"linux".into(), &architecture.into()));
        let url = "https://host/owner/project/releases/download/v1/kubectl-s3-linux-";
        assert_eq!(platform["uri"], format!("{url}{architecture}.tar.gz"));
        assert_eq!(platform["sha256"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(
            (&platform["bin"], &platform["files"][1]["from"]),
            (&"kubectl-s3".into(), &"LICENSE".into())
        );
    }
    assert!(xtask::krew::manifest("https://host", &[folder.path().join("kubectl-s3.tar.gz")]).is_err());
    let (_, release) = workflows().into_iter().find(|(file, _)| file == "release.yaml").unwrap();
    for architecture in ["amd64", "arm64"] {
        let built = release["jobs"]["images"]["strategy"]["matrix"]["include"].as_array().unwrap();
        assert!(built.iter().any(|one| one["architecture"] == architecture), "{built:?}");
    }
    assert!(scripts(&release).contains("s3.yaml kubectl-s3-linux-*.tar.gz"), "the release has both");
}

/// What the front page and the page on installing call is what the release pushes.
#[test]
fn the_chart_is_installed_from_where_the_release_pushes_it() {
    let (_, release) = workflows().into_iter().find(|(file, _)| file == "release.yaml").unwrap();
    assert!(scripts(&release).contains("helm push \"s3-csi-$VERSION.tgz\" \"oci://$REGISTRY/charts\""));
    for page in ["README.md", "docs/installation.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(
            text.contains("helm install s3-csi oci://REGISTRY/charts/s3-csi --version VERSION"),
            "{page}"
        );
    }
}

/// Chart and programs have one version, and the changelog has what comes next.
#[test]
fn there_is_one_version() {
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(root().join("charts/s3-csi/Chart.yaml")).unwrap())
            .unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert!(fs::read_to_string(root().join("CHANGELOG.md")).unwrap().contains("\n## Unreleased\n"));
}

#[test]
fn issue_templates_are_forms() {
    let forms = files_below(&root().join(".github/ISSUE_TEMPLATE"), "yml");
    assert!(forms.len() > 2, "{forms:?}");
    for file in forms.iter().filter(|file| !file.ends_with("config.yml")) {
        let form: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for field in ["name", "description"] {
            assert!(form[field].is_string(), "{}: {field}", file.display());
        }
        assert!(
            form["body"].as_array().unwrap().iter().all(|one| one["attributes"].is_object()),
            "{}",
            file.display()
        );
    }
}
