//! Runs a failed test once more, alone: one that passes then depends on what else the machine does. That is a defect of the
//! test or a race in the driver, so that it is reported with its evidence; it does not throw away an hour of other results.

use anyhow::Result;

use super::count::Count;

/// With more failures in a suite, something is broken, and repeating all of them only delays the report.
const AT_MOST: usize = 3;

/// `run` runs one test by its name.
pub(super) fn repeat(suite: &str, mut count: Count, mut run: impl FnMut(&str) -> Result<Count>) -> Count {
    if count.failures.len() > AT_MOST {
        return count;
    }
    for failure in std::mem::take(&mut count.failures) {
        let test = failure.name.strip_prefix(suite).map_or("", str::trim_start);
        println!("{suite}: {test} failed and runs once more");
        match run(test) {
            Ok(again) if again.passed == 1 && again.failures.is_empty() => {
                count.passed += 1;
                count.unstable.push(failure);
            }
            Ok(_) => count.failures.push(failure),
            Err(error) => {
                println!("{suite}: {error:#}");
                count.failures.push(failure);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::failures::Failure;
    use super::*;

    fn failed(tests: &[&str]) -> Count {
        let failure = |test: &&str| Failure { name: format!("kernel {test}"), reason: "why".to_owned() };
        Count { passed: 5, failures: tests.iter().map(failure).collect(), ..Count::default() }
    }

    fn passed(passed: u32) -> Count {
        Count { passed, ..Count::default() }
    }

    #[test]
    fn a_test_that_passes_alone_is_reported_and_one_that_fails_again_has_failed() {
        let mut names = Vec::new();
        let count = repeat("kernel", failed(&["a::b", "c::d", "e::f"]), |test| {
            names.push(test.to_owned());
            match test {
                "a::b" => Ok(passed(1)),
                "c::d" => Ok(failed(&["c::d"])),
                _ => anyhow::bail!("stuck"),
            }
        });
        assert_eq!(names, ["a::b", "c::d", "e::f"]);
        assert_eq!(count.passed, 6);
        let names = |failures: &[Failure]| failures.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&count.unstable), ["kernel a::b"]);
        assert_eq!(names(&count.failures), ["kernel c::d", "kernel e::f"]);
    }

    #[test]
    fn a_repetition_that_runs_nothing_proves_nothing() {
        let count = repeat("kernel", failed(&["a::b"]), |_| Ok(passed(0)));
        assert_eq!((count.failures.len(), count.unstable.len()), (1, 0));
    }

    #[test]
    fn a_broken_suite_is_not_repeated() {
        let count = repeat("kernel", failed(&["a", "b", "c", "d"]), |_| panic!("not run"));
        assert_eq!(count.failures.len(), 4);
    }
}
