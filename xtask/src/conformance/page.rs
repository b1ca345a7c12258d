//! The result as a page of the documentation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::outcome::{self, Outcome, Spec};

/// Suite and pattern: specs of different patterns have the same names.
type Group<'a> = (&'a str, &'a str);

pub(super) fn write(version: &str, specs: &[Spec]) -> String {
    let (passed, skipped, failed) = outcome::count(specs);
    include_str!("page.md")
        .replace("{version}", version)
        .replace("{passed}", &passed.to_string())
        .replace("{skipped}", &skipped.to_string())
        .replace("{failed}", &failed.to_string())
        .replace("{specs}", &ran(specs))
        .replace("{reasons}", &left_out(specs))
}

fn ran(specs: &[Spec]) -> String {
    let mut table = String::new();
    for spec in specs {
        let result = match &spec.outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(message) => {
                format!("**failed**: {}", message.lines().next().unwrap_or_default())
            }
            Outcome::Skipped(_) => continue,
        };
        let _ = writeln!(table, "| {} | {} | {} | {} |", spec.suite, spec.pattern, spec.name, cell(&result));
    }
    table
}

/// One row for each reason and group. Names are given if only some specs of the group are skipped.
fn left_out(specs: &[Spec]) -> String {
    let mut groups: BTreeMap<Group<'_>, usize> = BTreeMap::new();
    let mut skipped: BTreeMap<(&str, Group<'_>), Vec<&str>> = BTreeMap::new();
    for spec in specs {
        let group = (spec.suite.as_str(), spec.pattern.as_str());
        *groups.entry(group).or_default() += 1;
        if let Outcome::Skipped(reason) = &spec.outcome {
            skipped.entry((reason, group)).or_default().push(&spec.name);
        }
    }
    let mut table = String::new();
    for ((reason, group), names) in skipped {
        let names = if names.len() == groups[&group] && names.len() > 1 {
            format!("all {}", names.len())
        } else {
            names.join("; ")
        };
        let _ = writeln!(table, "| {} | {} | {} | {names} |", cell(reason), group.0, group.1);
    }
    table
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, outcome: Outcome) -> Spec {
        Spec { suite: "subPath".to_owned(), pattern: "Dynamic PV".to_owned(), name: name.to_owned(), outcome }
    }

    #[test]
    fn each_spec_is_in_one_table() {
        let no = || Outcome::Skipped("no links".to_owned());
        let specs =
            [spec("a", Outcome::Passed), spec("b", Outcome::Failed("x\ny".to_owned())), spec("c", no())];
        let page = write("1.2.3", &specs);
        for line in [
            "| subPath | Dynamic PV | a | passed |",
            "| subPath | Dynamic PV | b | **failed**: x |",
            "| no links | subPath | Dynamic PV | c |",
        ] {
            assert!(page.lines().any(|one| one == line), "{page}");
        }
        assert!(!page.contains('{'), "{page}");
        assert!(write("1.2.3", &[spec("a", no()), spec("b", no())]).contains("| Dynamic PV | all 2 |"));
    }
}
