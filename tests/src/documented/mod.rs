//! The documentation matches the code: tables are complete, promises name their tests, links lead somewhere.

mod admission;
mod architecture;
mod flags;
mod lengths;
mod links;
mod promises;
mod provisioning;
mod tables;
mod troubleshooting;
mod values;
mod workflows;

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The rows of all tables of a page or a section, without their headers.
fn rows(text: &str) -> Vec<&str> {
    let mut lines = text.lines().peekable();
    let mut rows = Vec::new();
    while let Some(line) = lines.next() {
        if lines.peek().is_some_and(|next| next.starts_with("|---")) {
            lines.next();
        } else if line.starts_with('|') {
            rows.push(line);
        }
    }
    rows
}

/// What a cell has between backticks.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn first_cell(row: &str) -> &str {
    row.trim_start_matches('|').split('|').next().unwrap_or_default()
}

fn last_cell(row: &str) -> &str {
    row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default()
}

/// The text below a heading, up to the next heading of the same or a higher level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, text) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`"));
    let level = heading.chars().take_while(|character| *character == '#').count();
    let ends = (1..=level).filter_map(|level| text.find(&format!("\n{} ", "#".repeat(level))));
    &text[..ends.min().unwrap_or(text.len())]
}

/// All files with this extension below a folder.
fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|one| one == extension) {
            found.push(path);
        }
    }
    found
}

#[test]
fn rows_and_sections_are_found() {
    let page = "# A\n\n## B\n\n| x | y |\n|---|---|\n| `a b`, `c` | d |\n\n### C\n\n| e | f |\n|---|---|\n| g | `h` |\n\n## D\n";
    assert_eq!(rows(page), ["| `a b`, `c` | d |", "| g | `h` |"]);
    assert_eq!(rows(section(page, "### C")), ["| g | `h` |"]);
    assert_eq!(rows(section(page, "## B")).len(), 2);
    assert_eq!(spans(first_cell("| `a b`, `c` | d |")).collect::<Vec<_>>(), ["a b", "c"]);
    assert_eq!(last_cell("| g | `h` |").trim(), "`h`");
}
