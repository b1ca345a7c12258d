//! Tables of options, parameters and metrics list what the code has, and nothing else.

use std::collections::BTreeSet;
use std::fs;

use contract::volume::attribute;
use controller::provision::class::parameters::{WITHOUT_EFFECT, known};

use super::{files_below, first_cell, last_cell, root, rows, section, spans};

/// The names in the first column, without their values.
fn documented(text: &str) -> BTreeSet<&str> {
    let names = rows(text).into_iter().flat_map(|row| spans(first_cell(row)));
    names.filter_map(|name| name.split(' ').next()).collect()
}

/// Of the mount process, as generated from its code.
fn flags() -> impl Iterator<Item = &'static str> {
    let help = include_str!("../../../docs/flags/s3-csi-mountpoint.txt");
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ','])).filter(|word| word.starts_with('-'));
    words
        .map(|word| word.trim_start_matches('-'))
        .filter(|flag| !["h", "help", "V", "version"].contains(flag))
}

#[test]
fn the_documented_mount_options_are_those_of_the_mount_process() {
    let page = include_str!("../../../docs/mount-options.md");
    let headings = ["## Supported options", "## Options set by the driver", "## Ignored options"];
    let documented: BTreeSet<&str> =
        headings.into_iter().flat_map(|heading| documented(section(page, heading))).collect();
    // A variable of the mount process, and an option of fusermount.
    let expected: BTreeSet<&str> = flags().chain(["aws-max-attempts", "o"]).collect();
    assert_eq!(documented, expected);
}

/// All source files below a folder of `crates`.
fn sources(folder: &str) -> Vec<String> {
    let files = files_below(&root().join("crates").join(folder), "rs");
    files.into_iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn the_documented_volume_attributes_are_those_of_the_contract() {
    let page = include_str!("../../../docs/static-volumes.md");
    let known: BTreeSet<&str> = attribute::ALL.iter().copied().collect();
    assert_eq!(documented(section(page, "### Attributes")), known);
    // The list leaves none out; of the environment, it has the variables and not their prefix.
    let sources = sources("contract/src");
    let module = sources.iter().find_map(|source| source.split_once("pub mod attribute {")).unwrap().1;
    let keys: BTreeSet<&str> =
        literals(module.split_once("\n}").unwrap().0).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys.difference(&known).collect::<Vec<_>>(), [&attribute::ENVIRONMENT]);
}

#[test]
fn the_documented_class_parameters_are_the_accepted_ones() {
    let page = include_str!("../../../docs/provisioning.md");
    let accepted: BTreeSet<&str> = known().into_iter().chain(WITHOUT_EFFECT.iter().copied()).collect();
    assert_eq!(documented(section(page, "## Class parameters")), accepted);
}

#[test]
fn the_documented_events_are_those_of_the_programs() {
    let attachments = include_str!("../../../docs/attachments.md");
    let provisioning = include_str!("../../../docs/provisioning.md");
    let reasons = documented(section(attachments, "## Events and conditions"));
    let events = rows(section(provisioning, "## Events and conditions"));
    let sources = sources(".").concat();
    let words: BTreeSet<&str> = sources.split(|one: char| !one.is_alphanumeric()).collect();
    let all: Vec<&str> =
        reasons.into_iter().chain(events.into_iter().flat_map(|row| spans(last_cell(row)))).collect();
    assert!(all.len() > 15, "{all:?}");
    assert_eq!(all.into_iter().find(|reason| !words.contains(reason)), None, "no program has this reason");
}

/// The string literals of a source file, each with the code that follows it.
fn literals(source: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = source.split('"').collect();
    parts.windows(2).skip(1).step_by(2).map(|pair| (pair[0], pair[1])).collect()
}

/// A metric has a name in snake case, given to `register` or directly followed by its help text.
fn registered(source: &str) -> BTreeSet<&str> {
    let is_name =
        |text: &str| text.chars().all(|one| one.is_ascii_lowercase() || one == '_' || one.is_ascii_digit());
    let literals = literals(source);
    let with_help = literals.windows(2).filter(|pair| {
        is_name(pair[0].0) && pair[0].1.trim() == "," && !pair[1].0.starts_with(char::is_lowercase)
    });
    let calls = source.split(".register(").skip(1).filter_map(|call| call.trim_start().strip_prefix('"'));
    let with_help = with_help.map(|pair| pair[0].0);
    let names = with_help.chain(calls.filter_map(|call| call.split('"').next()));
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_documented_metrics_are_the_registered_ones() {
    let page = include_str!("../../../docs/metrics.md");
    let documented = documented(section(page, "## Probes and metrics"));
    for program in ["node", "controller"] {
        let prefix = format!("s3_csi_{program}_");
        let documented: BTreeSet<&str> = documented
            .iter()
            .filter_map(|metric| metric.strip_prefix(&prefix))
            .map(|metric| metric.trim_end_matches("_total"))
            .collect();
        let sources: String = files_below(&root().join("crates").join(program), "rs")
            .into_iter()
            .filter(|file| {
                file.components().any(|part| part.as_os_str().to_string_lossy().starts_with("metrics"))
            })
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        assert_eq!(documented, registered(&sources), "metrics of {program}");
    }
}
