//! Relative links between pages lead to files and headings that exist, all others to where the project means to lead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{files_below, root};

/// Where pages lead outside the repository: to these, and to what lies below them.
const OUTSIDE: [&str; 5] = [
    "https://github.com/awslabs/mountpoint-s3",
    "https://github.com/versity/versitygw",
    "https://keepachangelog.com",
    "https://krew.sigs.k8s.io",
    "https://semver.org",
];

fn pages() -> Vec<PathBuf> {
    let mut pages = files_below(&root().join("docs"), "md");
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|page| root().join(page)),
    );
    pages
}

/// The anchor that GitHub gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(page).unwrap();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let file = if file.is_empty() { page.to_owned() } else { page.with_file_name("").join(file) };
    file.exists() && (heading.is_empty() || has_heading(&file, heading))
}

/// What of [`OUTSIDE`] a link leads to. A link that is not well-formed leads to none of it.
fn outside(link: &str) -> Option<&'static str> {
    let is_below = |known: &&str| {
        let rest = link.strip_prefix(*known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '#']))
    };
    OUTSIDE.into_iter().find(is_below).filter(|_| link.chars().all(|one| one.is_ascii_graphic()))
}

#[test]
fn every_link_leads_somewhere() {
    let (mut checked, mut used) = (0, BTreeSet::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        // `<https://…>` is a link, too.
        let bare = text.split("<http").skip(1).filter_map(|rest| rest.split_once('>'));
        for link in links.map(str::to_owned).chain(bare.map(|(rest, _)| format!("http{rest}"))) {
            let leads = if link.contains("//") {
                let known = outside(&link);
                used.extend(known);
                known.is_some()
            } else {
                leads_somewhere(&page, &link)
            };
            assert!(leads, "{} links to {link}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} links found");
    assert_eq!(used, BTreeSet::from(OUTSIDE), "a link that is gone can be removed here");
}

#[test]
fn a_link_to_elsewhere_is_noticed() {
    for (link, leads) in [
        ("https://semver.org", true),
        ("https://semver.org/#spec", true),
        ("https://github.com/versity/versitygw/releases", true),
        ("http://semver.org", false),
        ("https://semver.org.example.com", false),
        ("https://github.com/versity/versitygw-other", false),
        ("https://github.com/versity", false),
        ("https://semver.org/a b", false),
        ("//semver.org", false),
    ] {
        assert_eq!(outside(link).is_some(), leads, "{link}");
    }
}
