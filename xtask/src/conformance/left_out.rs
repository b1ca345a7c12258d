//! Specs that are not run, and why. Those of features that the driver does not have leave themselves out, because `driver.yaml`
//! does not name the features.

/// A part of the spec's full name, and the reason.
pub(super) type LeftOut = (&'static str, &'static str);

const NO_LINKS: &str = "makes a symbolic link in the volume: an object cannot be one";

pub(super) const LEFT_OUT: &[LeftOut] = &[
    ("should fail if subpath directory is outside the volume", NO_LINKS),
    ("should fail if subpath file is outside the volume", NO_LINKS),
    ("should fail if non-existent subpath is outside the volume", NO_LINKS),
    ("should fail if subpath with backstepping is outside the volume", NO_LINKS),
    (
        "should write files of various sizes, verify size, validate content",
        "builds its files by appending to closed ones: S3 has no append",
    ),
];

/// Why a spec of this name is not run.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(part, _)| name.contains(part)).map(|(_, reason)| *reason)
}

/// An entry that no spec of the suite has is outdated.
pub(super) fn outdated(names: &[&str]) -> Option<&'static str> {
    let used = |part: &str| names.iter().any(|name| name.contains(part));
    LEFT_OUT.iter().map(|(part, _)| *part).find(|part| !used(part))
}

/// The regular expression that matches the specs, of the only volume type with which they would run.
pub(super) fn pattern() -> String {
    let parts: Vec<&str> = LEFT_OUT.iter().map(|(part, _)| *part).collect();
    format!("Dynamic PV .default fs..*({})", parts.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_regular_expressions_of_themselves() {
        for (part, _) in LEFT_OUT {
            assert!(part.chars().all(|c| c.is_ascii_alphabetic() || " ,-".contains(c)), "{part}");
        }
    }

    #[test]
    fn an_entry_without_a_spec_is_outdated() {
        let names: Vec<&str> = LEFT_OUT.iter().map(|(part, _)| *part).collect();
        assert_eq!(outdated(&names), None);
        assert_eq!(outdated(&names[1..]), Some(names[0]));
    }

    #[test]
    fn the_page_has_every_reason() {
        let page = include_str!("../../../docs/conformance.md");
        for (part, reason) in LEFT_OUT {
            assert!(page.contains(part) && page.contains(reason), "{part}");
        }
    }
}
