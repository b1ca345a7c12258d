//! The map of the code names files and functions that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{first_cell, last_cell, root, rows, section, spans};
use crate::modules::imports;

const PAGE: &str = include_str!("../../../docs/architecture.md");

/// `node/publish.rs` is `crates/node/src/publish.rs`; other paths are from the root of the repository.
fn path(span: &str) -> Option<PathBuf> {
    let (first, rest) = span.split_once('/')?;
    let package = root().join("crates").join(first);
    Some(if package.is_dir() { package.join("src").join(rest) } else { root().join(span) })
}

fn has_extension(span: &str, extension: &str) -> bool {
    Path::new(span).extension().is_some_and(|one| one == extension)
}

#[test]
fn every_file_on_the_map_exists() {
    let paths: Vec<&str> =
        spans(PAGE).filter(|span| has_extension(span, "rs") || has_extension(span, "yaml")).collect();
    assert!(paths.len() > 20, "{paths:?}");
    let missing: Vec<&str> =
        paths.into_iter().filter(|span| !path(span).is_some_and(|path| path.is_file())).collect();
    assert_eq!(missing, [""; 0]);
}

/// In the tables of the journeys, a row has a file and the functions of one step.
#[test]
fn every_function_on_the_map_exists() {
    let mut missing = Vec::new();
    for row in rows(PAGE) {
        let file = spans(first_cell(row)).next().filter(|span| has_extension(span, "rs")).and_then(path);
        let Some(code) = file.and_then(|file| fs::read_to_string(file).ok()) else { continue };
        let functions =
            spans(last_cell(row)).filter(|span| span.chars().all(|one| one.is_lowercase() || one == '_'));
        let unknown =
            |name: &&str| !code.contains(&format!("fn {name}(")) && !code.contains(&format!("fn {name}<"));
        missing.extend(functions.filter(unknown).map(|name| format!("{}: {name}", first_cell(row).trim())));
    }
    assert_eq!(missing, [""; 0]);
}

/// A row has a crate and its layers. A module may import from its own layer and from those behind it.
#[test]
fn modules_import_only_from_lower_layers() {
    let mut wrong = Vec::new();
    let table = rows(section(PAGE, "## What may import what")).into_iter().filter(|row| row.contains('→'));
    for row in table {
        let name = spans(first_cell(row)).next().unwrap();
        let layers = last_cell(row).split('→').enumerate();
        let layers: BTreeMap<&str, usize> =
            layers.flat_map(|(layer, modules)| spans(modules).map(move |module| (module, layer))).collect();
        let imports = imports(&root().join("crates").join(name).join("src"));
        let imports = imports.iter().filter(|(module, _)| !module.is_empty());
        let present: BTreeSet<&str> = imports.clone().map(|(module, _)| module[0].as_str()).collect();
        assert_eq!(layers.keys().copied().collect::<BTreeSet<_>>(), present, "modules of {name}");
        for (module, imported) in imports {
            let upward = imported
                .iter()
                .filter(|other| !other.is_empty() && layers[other[0].as_str()] < layers[module[0].as_str()]);
            wrong.extend(upward.map(|other| format!("{name}: {} → {}", module.join("::"), other.join("::"))));
        }
    }
    assert_eq!(wrong, [""; 0]);
}
