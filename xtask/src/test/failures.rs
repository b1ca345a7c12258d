//! Which tests failed, and why, from the output of a test program. The end of a long run repeats it, because logs of CI are cut
//! at their beginning.

use crate::process::Line;

/// Enough for the message of an assertion with both of its sides.
const LINES_OF_A_PANIC: usize = 6;

/// A test or a step of the run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) name: String,
    /// The panic message with its place, or the error. Empty if the test program did not print one.
    pub(super) reason: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.name)?;
        self.reason.lines().try_for_each(|line| write!(formatter, "\n    {line}"))
    }
}

/// Reads both streams of a test program, line by line. They are read apart, because their lines arrive in any order.
#[derive(Default)]
pub(super) struct Failures {
    names: Vec<String>,
    in_list: bool,
    /// What tests printed themselves, or the test program for them.
    panics: [Panics; 2],
}

impl Failures {
    pub(super) fn read(&mut self, line: &Line) {
        let [of_output, of_errors] = &mut self.panics;
        let line = match line {
            Line::Error(line) => return of_errors.read(line),
            Line::Out(line) => line,
        };
        of_output.read(line);
        // The list of names comes last; what failing tests printed may be under the same title before it.
        if line == "failures:" {
            self.names.clear();
            self.in_list = true;
        } else if self.in_list {
            self.names.extend(line.strip_prefix("    ").map(str::to_owned));
        }
    }

    /// The failures of this suite.
    pub(super) fn of(self, suite: &str) -> Vec<Failure> {
        let reason = |name: &str| {
            let mut all = self.panics.iter().flat_map(|panics| &panics.lines);
            let of_test = all.find(|(thread, _)| thread == name);
            of_test.map_or(String::new(), |(_, lines)| lines.join("\n"))
        };
        self.names
            .iter()
            .map(|name| Failure { name: format!("{suite} {name}"), reason: reason(name) })
            .collect()
    }
}

#[derive(Default)]
struct Panics {
    /// By name of the thread, which is that of its test.
    lines: Vec<(String, Vec<String>)>,
    in_panic: bool,
}

impl Panics {
    fn read(&mut self, line: &str) {
        if let Some(thread) = panicked(line) {
            self.lines.push((thread.to_owned(), vec![line.to_owned()]));
            self.in_panic = true;
        } else if self.in_panic {
            let (_, lines) = self.lines.last_mut().expect("a panic was read");
            self.in_panic = lines.len() < LINES_OF_A_PANIC && !is_after_panic(line);
            if self.in_panic {
                lines.push(line.to_owned());
            }
        }
    }
}

/// `thread 'NAME' (123) panicked at FILE:LINE:COLUMN:`
fn panicked(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("thread '")?.split_once('\'')?;
    rest.contains(" panicked at ").then_some(name)
}

fn is_after_panic(line: &str) -> bool {
    line.starts_with("note: ") || line.starts_with("stack backtrace:") || line.starts_with("test ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Vec<Failure> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(&Line::Out(line.to_owned())));
        failures.of("kernel")
    }

    #[test]
    fn the_failed_tests_are_listed_with_their_panics() {
        let output = "test a::b ... ok\n\
            thread 'c::d' (17) panicked at tests/kernel/c.rs:3:5:\n\
            assertion `left == right` failed\n  left: 1\n right: 2\n\
            note: run with `RUST_BACKTRACE=1`\n\
            test c::d ... FAILED\n\
            failures:\n\n---- c::d stdout ----\n    indented, and no name\n\n\
            failures:\n    c::d\n    e\n\ntest result: FAILED. 1 passed; 2 failed";
        let failures = read(output);
        let names: Vec<&str> = failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(names, ["kernel c::d", "kernel e"]);
        assert_eq!(failures[0].reason.lines().count(), 4, "{}", failures[0]);
        assert!(failures[0].to_string().ends_with("\n     right: 2"), "{}", failures[0]);
        assert_eq!(failures[1].reason, "");
    }

    #[test]
    fn output_that_looks_alike_is_no_failure() {
        assert_eq!(read("    indented\nthread 'main' says hello\ntest a ... ok\ntest result: ok."), []);
    }
}
