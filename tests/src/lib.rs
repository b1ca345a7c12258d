//! What every suite stands on: the cluster around it, waiting with a deadline, and touching served paths safely.

pub mod account;
pub mod chart;
pub mod claims;
pub mod controller;
pub mod csi;
#[cfg(test)]
mod documented;
pub mod faulty;
mod inside;
pub mod manifest;
pub mod memory_limit;
pub mod mountpoint_pod;
pub mod node;
pub mod processes;
pub mod program;
pub mod relay;
pub mod right;
pub mod sanity;
mod served;
pub mod stage;
mod wait;

pub use inside::{Inside, cluster};
pub use served::within;
pub use stage::Stage;
pub use wait::{Seen, eventually};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The tests that a row of a table names in its last column.
    fn named(row: &str) -> Vec<&str> {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        tests.split('`').skip(1).step_by(2).collect()
    }

    /// The names of the tests in a file.
    fn tests_of(file: &str) -> impl Iterator<Item = &str> {
        let parts = file.split("#[test]").chain(file.split("#[tokio::test]")).skip(1);
        parts.filter_map(|part| {
            let declared = part.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
            declared.split('(').next()
        })
    }

    /// The names of all tests below a folder.
    fn tests_below(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                tests_below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(tests_of(&fs::read_to_string(path).unwrap()).map(str::to_owned));
            }
        }
    }

    /// Each promise names its test, and each test its promise.
    #[test]
    fn the_documented_semantics_are_the_tested_ones() {
        let page = include_str!("../../docs/semantics.md");
        let rows = page.lines().filter(|line| line.starts_with('|')).skip(2);
        let mut promised: Vec<&str> = rows.flat_map(named).collect();
        let files = [include_str!("../kernel/semantics.rs"), include_str!("../cluster/semantics.rs")];
        let mut tests: Vec<&str> = files.into_iter().flat_map(tests_of).collect();
        promised.sort_unstable();
        tests.sort_unstable();
        assert_eq!(promised, tests);
    }

    /// Each promise names a test that is there, and what is tested of rights and policies is promised.
    #[test]
    fn the_documented_security_is_the_tested_one() {
        let page = include_str!("../../docs/security.md");
        let table = page.split("| promise | test |\n|---|---|\n").nth(1).unwrap();
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut all = BTreeSet::new();
        for folder in [root.to_owned(), root.join("../crates")] {
            tests_below(&folder, &mut all);
        }
        for row in &rows {
            assert!(!named(row).is_empty(), "without a test: {row}");
            assert_eq!(named(row).iter().find(|test| !all.contains(**test)), None, "no such test: {row}");
        }
        let promised: BTreeSet<&str> = rows.into_iter().flat_map(named).collect();
        let files = [
            include_str!("../api/rights.rs"),
            include_str!("../api/policies.rs"),
            include_str!("../api/needed.rs"),
            include_str!("../api/needed/node.rs"),
        ];
        let kept: BTreeSet<&str> = files.into_iter().flat_map(tests_of).collect();
        assert_eq!(kept.difference(&promised).next(), None, "a test without its promise");
    }

    /// What people copy from the front page is what is applied by a test.
    #[test]
    fn the_front_page_shows_the_example() {
        let example = include_str!("../../examples/static.yaml");
        assert!(include_str!("../../README.md").contains(&format!("```yaml\n{example}```")));
    }
}
