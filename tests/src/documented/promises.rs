//! Pages that promise something name the tests that keep it so.

use std::collections::BTreeSet;
use std::fs;

use super::{files_below, first_cell, last_cell, root, rows, section, spans};

/// The names of the tests in a file.
fn tests_of(file: &str) -> BTreeSet<&str> {
    let parts = file.split("#[test]").skip(1).chain(file.split("#[tokio::test]").skip(1));
    parts
        .filter_map(|part| {
            let declared = part.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
            declared.split('(').next()
        })
        .collect()
}

/// The names of all tests below these folders of the repository.
fn tests_below(folders: &[&str]) -> BTreeSet<String> {
    let files = folders.iter().flat_map(|folder| files_below(&root().join(folder), "rs"));
    files.flat_map(|file| names_of(&fs::read_to_string(file).unwrap())).collect()
}

fn names_of(file: &str) -> Vec<String> {
    tests_of(file).into_iter().map(str::to_owned).collect()
}

/// The tests that the rows name in their last column. Each row must name one, and each must exist.
fn promised<'a>(rows: &[&'a str], existing: &BTreeSet<String>) -> BTreeSet<&'a str> {
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let mut named = spans(last_cell(row)).peekable();
        assert!(named.peek().is_some(), "without a test: {row}");
        assert_eq!(named.find(|test| !existing.contains(*test)), None, "no such test: {row}");
    }
    rows.iter().flat_map(|row| spans(last_cell(row))).collect()
}

#[test]
fn the_documented_failures_are_the_tested_ones() {
    let page = include_str!("../../../docs/failures.md");
    let existing = tests_below(&[
        "tests/api",
        "tests/cluster",
        "tests/identities",
        "tests/kernel",
        "tests/nodes",
        "tests/operations",
    ]);
    let promised = promised(&rows(page), &existing);
    let (first_table, _) = page.split_once("\n## ").unwrap();
    let on_nodes = tests_below(&["tests/cluster", "tests/identities", "tests/nodes", "tests/operations"]);
    let elsewhere = rows(first_table).into_iter();
    let elsewhere = elsewhere.filter(|row| !spans(last_cell(row)).any(|test| on_nodes.contains(test)));
    let elsewhere: Vec<&str> = elsewhere.map(|row| first_cell(row).trim()).collect();
    assert!(elsewhere.is_empty(), "without a test on a real node: {elsewhere:?}");
    for file in [
        include_str!("../../cluster/deaths.rs"),
        include_str!("../../cluster/evictions.rs"),
        include_str!("../../cluster/failures.rs"),
    ] {
        assert_eq!(tests_of(file).difference(&promised).next(), None, "this test is in no row of the page");
    }
}

#[test]
fn the_documented_semantics_are_the_tested_ones() {
    let page = include_str!("../../../docs/semantics.md");
    let files = [
        include_str!("../../kernel/continued.rs"),
        include_str!("../../kernel/copied.rs"),
        include_str!("../../kernel/giving_up.rs"),
        include_str!("../../kernel/lingering.rs"),
        include_str!("../../kernel/moves.rs"),
        include_str!("../../kernel/names.rs"),
        include_str!("../../kernel/programs.rs"),
        include_str!("../../kernel/random.rs"),
        include_str!("../../kernel/rename_races.rs"),
        include_str!("../../kernel/renames.rs"),
        include_str!("../../kernel/semantics.rs"),
        include_str!("../../kernel/requests.rs"),
        include_str!("../../kernel/survival.rs"),
        include_str!("../../kernel/writers.rs"),
        include_str!("../../cluster/semantics.rs"),
    ];
    let tests: BTreeSet<&str> = files.into_iter().flat_map(tests_of).collect();
    let existing = tests.iter().map(|test| (*test).to_owned()).collect();
    assert_eq!(promised(&rows(page), &existing), tests);
}

/// What is tested of permissions and policies is also promised.
#[test]
fn the_documented_security_is_the_tested_one() {
    let page = include_str!("../../../docs/security.md");
    let permissions = section(page, "## Permissions in the cluster");
    let (_, table) = permissions.split_once("| promise | test |").unwrap();
    let promised = promised(&rows(table), &tests_below(&["tests", "crates"]));
    let files = [
        include_str!("../../api/rights.rs"),
        include_str!("../../api/policies.rs"),
        include_str!("../../api/needed.rs"),
        include_str!("../../api/needed/node.rs"),
    ];
    let kept: BTreeSet<&str> = files.into_iter().flat_map(tests_of).collect();
    assert_eq!(kept.difference(&promised).next(), None, "a test without its promise");
}

/// What is tested with hostile tenants and servers is among the threats.
#[test]
fn the_documented_threats_are_the_tested_ones() {
    let page = include_str!("../../../docs/security.md");
    let promised = promised(&rows(section(page, "## Threats")), &tests_below(&["tests", "crates"]));
    for file in [include_str!("../../api/memory.rs"), include_str!("../../claims/hostile.rs")] {
        assert_eq!(tests_of(file).difference(&promised).next(), None, "a test without its threat");
    }
}

/// The example on the front page is the one that a test applies.
#[test]
fn the_front_page_shows_the_example() {
    let example = include_str!("../../../examples/static.yaml");
    assert!(include_str!("../../../README.md").contains(&format!("```yaml\n{example}```")));
}

/// An installation from a registry has no other copy.
#[test]
fn the_examples_of_the_chart_are_those_that_tests_apply() {
    let examples = [
        (
            include_str!("../../../charts/s3-csi/examples/static.yaml"),
            include_str!("../../../examples/static.yaml"),
        ),
        (
            include_str!("../../../charts/s3-csi/examples/dynamic-bucket-per-claim.yaml"),
            include_str!("../../../examples/dynamic-bucket-per-claim.yaml"),
        ),
    ];
    for (of_chart, tested) in examples {
        assert_eq!(of_chart, tested);
    }
}
