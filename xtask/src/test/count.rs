//! What became of tests: their number, and each that failed.

use anyhow::{Result, bail};

use super::failures::Failure;
use crate::programs::Kubernetes;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u32,
    pub(super) failures: Vec<Failure>,
    /// Passed, but only when they ran once more.
    pub(super) unstable: Vec<Failure>,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.unstable.extend(other.unstable);
    }
}

impl Count {
    /// Nothing that was run has passed nothing. With a filter, other suites may have the tests that are meant.
    pub(super) fn of_something(self, filter: Option<&str>) -> Result<Self> {
        if self == Self::default() && filter.is_none() {
            bail!("there are no tests");
        }
        Ok(self)
    }

    /// Without those that passed only when they ran once more.
    pub(super) fn passed_at_once(&self) -> usize {
        (self.passed as usize).saturating_sub(self.unstable.len())
    }

    /// The same with the release on which tests failed, for a run on several.
    pub(super) fn on(mut self, kubernetes: Kubernetes) -> Self {
        for failure in self.failures.iter_mut().chain(&mut self.unstable) {
            failure.name = format!("Kubernetes {kubernetes}: {}", failure.name);
        }
        self
    }

    /// After all suites: somewhere there is a test of this name.
    pub(super) fn of_filtered(self, filter: Option<&str>) -> Result<Self> {
        match filter {
            Some(filter) if self == Self::default() => bail!("no test's name contains `{filter}`"),
            _ => Ok(self),
        }
    }
}

/// What could not even be run is a failure like others; the rest still gets its turn.
pub(super) fn or_failed(what: &str, outcome: Result<Count>) -> Count {
    outcome.unwrap_or_else(|error| {
        println!("{what}: {error:#}");
        let failure = Failure { name: what.to_owned(), reason: format!("{error:#}") };
        Count { failures: vec![failure], ..Count::default() }
    })
}

/// The last line is alone with its two numbers, for those who read only that.
pub(super) fn summary(total: &Count) -> String {
    let unstable = total.unstable.iter();
    let mut lines: Vec<String> =
        unstable.map(|failure| format!("unstable, passed when it ran once more: {failure}")).collect();
    lines.extend(total.failures.iter().map(|failure| format!("failed: {failure}")));
    if !total.unstable.is_empty() {
        lines.push(format!("{} unstable, which --strict counts as failed", total.unstable.len()));
    }
    lines.push(format!("{} passed, {} failed", total.passed, total.failures.len()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_matrix_say_on_which_release() {
        let failure = |name: &str| Failure { name: name.to_owned(), reason: "why".to_owned() };
        let count = Count { passed: 1, failures: vec![failure("api a")], unstable: vec![failure("api b")] };
        let summary = summary(&count.on(Kubernetes::V1_34));
        assert!(summary.contains("failed: Kubernetes 1.34: api a"), "{summary}");
        assert!(summary.contains("once more: Kubernetes 1.34: api b"), "{summary}");
    }

    #[test]
    fn unstable_tests_are_counted_before_the_last_line() {
        let failure = |name: &str| Failure { name: name.to_owned(), reason: "why".to_owned() };
        let mut total = Count { passed: 5, failures: vec![failure("a")], ..Count::default() };
        let last = "5 passed, 1 failed";
        assert!(!summary(&total).contains("unstable") && summary(&total).ends_with(&format!("\n{last}")));
        total.unstable = vec![failure("b"), failure("c")];
        let summary = summary(&total);
        let lines: Vec<&str> = summary.lines().rev().take(2).collect();
        assert_eq!(lines, [last, "2 unstable, which --strict counts as failed"]);
        assert!(summary.contains("once more: b") && summary.contains("failed: a"), "{summary}");
    }

    #[test]
    fn no_test_at_all_is_a_failure_unless_a_filter_left_none_here() {
        let nothing = Count::default();
        assert!(nothing.clone().of_something(None).is_err());
        assert!(nothing.clone().of_something(Some("rename")).is_ok());
        let error = nothing.of_filtered(Some("rename")).unwrap_err().to_string();
        assert_eq!(error, "no test's name contains `rename`");
        assert!(Count { passed: 1, ..Count::default() }.of_filtered(Some("rename")).is_ok());
    }
}
