//! What the page on failures promises is what is tested.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of the tests in a file.
fn tests_of(file: &str) -> Vec<String> {
    let declared = |part: &str| {
        let name = part.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
        name.split('(').next().map(str::to_owned)
    };
    file.replace("#[tokio::test]", "#[test]").split("#[test]").skip(1).filter_map(declared).collect()
}

/// Each row names tests that there are, and each test of a failure is in a row.
#[test]
fn the_documented_failures_are_the_tested_ones() {
    let suites = ["api", "cluster", "kernel"].map(|suite| Path::new(env!("CARGO_MANIFEST_DIR")).join(suite));
    let files = suites.iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    let sources = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let all: BTreeSet<String> = sources.flat_map(|source| tests_of(&source)).collect();
    let page = include_str!("../../docs/failures.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 5, "{rows:?}");
    let mut promised = BTreeSet::new();
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let named: Vec<String> = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!named.is_empty() && named.iter().all(|test| all.contains(test)), "no such test: {row}");
        promised.extend(named);
    }
    for file in [include_str!("../cluster/deaths.rs"), include_str!("../cluster/failures.rs")] {
        for test in tests_of(file) {
            assert!(promised.contains(&test), "{test} is in no row of the page");
        }
    }
}
