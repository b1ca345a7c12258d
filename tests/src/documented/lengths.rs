//! A file is one idea, for which about 300 lines are enough. A longer one says in its first comment why it is long.

use std::fs;

use super::{files_below, root};

const LINES: usize = 300;

fn says_why(text: &str) -> bool {
    let comment = text.lines().take_while(|line| line.starts_with("//!"));
    let comment = comment.collect::<String>().to_lowercase();
    comment.contains("long") && comment.contains("because")
}

#[test]
fn a_long_file_says_why() {
    let mut silent = Vec::new();
    for file in ["crates", "tests", "xtask"].iter().flat_map(|folder| files_below(&root().join(folder), "rs"))
    {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap();
        let is_ours = !name.contains("/generated/");
        if is_ours && text.lines().count() > LINES && !says_why(&text) {
            silent.push(name.to_owned());
        }
    }
    silent.sort();
    assert_eq!(silent, [""; 0], "split them, or say in the first comment: long, because …");
}

#[test]
fn a_reason_is_in_the_first_comment() {
    assert!(says_why("//! Requests. Long,\n//! because there are many.\n\nuse a;"));
    assert!(!says_why("//! Requests.\n\n// Long, because there are many.\n"));
}
