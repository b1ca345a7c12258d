//! `docs/matrix.md`: the result of each suite on each supported Kubernetes version. A row is replaced by the next run of its
//! suite and stays otherwise, so that the page can be written one suite at a time.

use std::fs;

use anyhow::{Context as _, Result};

use super::count::Count;
use super::real_parts::Outcome;
use crate::cache::checkout;
use crate::programs::Kubernetes;

const PAGE: &str = "docs/matrix.md";
const ROWS: &str = "{rows}";
/// The suite that says nothing about a Kubernetes version.
const WITHOUT_KUBERNETES: &str = "kernel";

/// Puts the results into the page.
pub(super) fn write(outcomes: &[Outcome]) -> Result<()> {
    let page = checkout().join(PAGE);
    let present = fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    let today = jiff::Zoned::now().date().to_string();
    let mut new = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.suite != WITHOUT_KUBERNETES) {
        let Outcome { kubernetes, suite, count } = outcome;
        new.push(row(kubernetes.version()?, suite, count, &today));
    }
    fs::write(&page, updated(&present, &new, &versions()?))?;
    println!("{}", page.display());
    Ok(())
}

fn row(version: String, suite: &str, count: &Count, today: &str) -> Row {
    let numbers = [count.passed_at_once(), count.unstable.len(), count.failures.len()];
    let [passed, unstable, failed] = numbers.map(|number| number.to_string());
    vec![version, suite.to_owned(), passed, unstable, failed, today.to_owned()]
}

/// The exact versions, newest first.
fn versions() -> Result<Vec<String>> {
    Kubernetes::ALL.into_iter().map(Kubernetes::version).collect()
}

/// The cells of a row: version, suite, results.
type Row = Vec<String>;

/// The page with these rows, and those of the present one that are about other suites of supported versions.
fn updated(present: &str, new: &[Row], versions: &[String]) -> String {
    let is_of = |row: &Row, other: &Row| row[..2] == other[..2];
    let kept = rows(present).filter(|row| !new.iter().any(|other| is_of(row, other)));
    let place = |row: &Row| versions.iter().position(|version| *version == row[0]);
    let mut all: Vec<Row> = kept.chain(new.iter().cloned()).filter(|row| place(row).is_some()).collect();
    all.sort_by_key(|row| (place(row), row[1].clone()));
    let lines: Vec<String> = all.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect();
    include_str!("matrix.md").replace(&format!("{ROWS}\n"), &lines.concat())
}

/// The rows of the page's only table, which begin with a version.
fn rows(page: &str) -> impl Iterator<Item = Row> {
    page.lines()
        .filter(|line| line.starts_with("| 1."))
        .map(|line| line.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::super::failures::Failure;
    use super::*;

    fn row(version: &str, suite: &str, passed: u32) -> Row {
        let count = Count { passed, ..Count::default() };
        super::row(version.to_owned(), suite, &count, "2030-01-01")
    }

    #[test]
    fn a_test_that_passed_once_more_is_unstable_and_not_passed() {
        let failure = |name: &str| Failure { name: name.to_owned(), reason: String::new() };
        let (failures, unstable) = (vec![failure("a")], vec![failure("b"), failure("c")]);
        let count = Count { passed: 7, failures, unstable };
        let row = super::row("1.3.1".to_owned(), "api", &count, "2030-01-01");
        assert_eq!(row, ["1.3.1", "api", "5", "2", "1", "2030-01-01"]);
    }

    #[test]
    fn a_run_replaces_the_rows_of_its_suites_and_those_of_other_versions_go() {
        let versions = ["1.3.1", "1.2.2"].map(str::to_owned);
        let old = [row("1.2.2", "nodes", 5), row("1.2.2", "api", 6), row("1.3.1", "api", 7)];
        let page = updated("", &old, &versions);
        let page = updated(&page, &[row("1.2.2", "api", 8)], &versions);
        assert_eq!(
            rows(&page).collect::<Vec<_>>(),
            [row("1.3.1", "api", 7), row("1.2.2", "api", 8), row("1.2.2", "nodes", 5)]
        );
        assert_eq!(rows(&updated(&page, &[], &versions[1..])).count(), 2);
    }

    /// After a change of a version, its rows are about another one.
    #[test]
    fn the_page_is_about_the_supported_versions() {
        let page = fs::read_to_string(checkout().join(PAGE)).unwrap();
        let current = updated(&page, &[], &versions().unwrap());
        assert!(page == current, "{PAGE} is out of date: run `cargo xtask test --matrix`");
    }
}
