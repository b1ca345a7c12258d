//! Definitions (CRDs) of other projects, for whose kinds the chart has objects: the Prometheus operator and `OpenShift`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::command::capture;
use crate::programs::go;
use crate::progress::step;

/// A Go module, and the files of it that are needed.
struct Source {
    module: &'static str,
    version: &'static str,
    files: &'static [&'static str],
}

const SOURCES: &[Source] = &[
    Source {
        module: "github.com/prometheus-operator/prometheus-operator",
        version: "v0.85.0",
        files: &[
            "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        ],
    },
    Source {
        module: "github.com/openshift/api",
        version: "v0.0.0-20240422085825-2624175e9673",
        files: &[
            "security/v1/zz_generated.crd-manifests/0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
        ],
    },
];

impl Source {
    fn kept(&self, cache: &Cache) -> Vec<PathBuf> {
        let folder = cache.programs().join(format!("definitions-{}", self.version));
        self.files.iter().filter_map(|file| Some(folder.join(Path::new(file).file_name()?))).collect()
    }

    fn fetch(&self, cache: &Cache) -> Result<()> {
        let mut download = go(cache, "mod");
        // Anywhere but in a module, whose own requirements would be asked for.
        download.current_dir("/").args(["download", "-json", &format!("{}@{}", self.module, self.version)]);
        let answer: serde_json::Value = serde_json::from_str(&capture(&mut download)?)?;
        let folder = Path::new(answer["Dir"].as_str().context("`go mod download` names no folder")?);
        for (file, kept) in self.files.iter().zip(self.kept(cache)) {
            fs::create_dir_all(kept.parent().expect("a file is in a folder"))?;
            fs::copy(folder.join(file), &kept).with_context(|| format!("no {file} in {}", self.module))?;
        }
        Ok(())
    }
}

/// Fetches those that are missing.
pub(crate) fn ensure(cache: &Cache) -> Result<()> {
    for source in SOURCES {
        if !source.kept(cache).iter().all(|file| file.exists()) {
            step(&format!("fetching {}", source.module), || source.fetch(cache))?;
        }
    }
    Ok(())
}

/// The files that are there after [`ensure`].
pub fn files(cache: &Cache) -> Vec<PathBuf> {
    SOURCES.iter().flat_map(|source| source.kept(cache)).collect()
}
