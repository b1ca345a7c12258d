//! The pages of the documentation and the blocks that they show, which tests apply and run.

use std::fs;
use std::path::{Path, PathBuf};

pub struct Page {
    /// Such as `README.md` or `docs/metrics.md`.
    pub name: String,
    pub text: String,
}

/// What a page has between a fence and the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub page: String,
    /// The nearest heading above it, without its hashes.
    pub heading: String,
    pub text: String,
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The front page and those in `docs`, by name.
pub fn all() -> Vec<Page> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|one| one == "md");
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = docs.filter(is_page).chain([root().join("README.md")]).collect();
    paths.sort();
    let read = |path: PathBuf| Page {
        name: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        text: fs::read_to_string(path).unwrap(),
    };
    paths.into_iter().map(read).collect()
}

/// The only block of this language below a heading of a page.
pub fn block(page: &str, heading: &str, language: &str) -> Block {
    let page = all().into_iter().find(|one| one.name == page).unwrap_or_else(|| panic!("no page {page}"));
    let mut blocks = page.blocks(language);
    blocks.retain(|block| block.heading == heading);
    assert_eq!(blocks.len(), 1, "{}: `{heading}` has not one block, but {blocks:?}", page.name);
    blocks.remove(0)
}

impl Page {
    /// The blocks whose fence names this language, without the indentation of the list that they may be in.
    pub fn blocks(&self, language: &str) -> Vec<Block> {
        let (mut heading, mut blocks, mut open) = ("", Vec::new(), None);
        for line in self.text.lines() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(named), None) => {
                    let block =
                        Block { page: self.name.clone(), heading: heading.to_owned(), text: String::new() };
                    open = Some((named == language, line.len() - line.trim_start().len(), block));
                }
                (Some(_), Some(_)) => {
                    blocks.extend(open.take().filter(|(wanted, ..)| *wanted).map(|(.., block)| block));
                }
                (None, Some((_, indentation, block))) => {
                    block.text += line.get(*indentation..).unwrap_or_default();
                    block.text.push('\n');
                }
                (None, None) if line.starts_with('#') => heading = line.trim_start_matches('#').trim(),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: the last block has no end", self.name);
        blocks
    }

    /// The lines that Markdown shows as they are, because they are indented.
    pub fn indented(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text.lines().filter(move |line| {
            fenced ^= line.trim_start().starts_with("```");
            !fenced && line.starts_with("    ")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_headings() {
        let text = "# A\n\n```sh\n# no heading\none\n```\n\n## B\n\n1. x\n\n   ```sh\n   two\n     three\n   ```\n\n    four:\n\n```yaml\nfive: 5\n```\n";
        let page = Page { name: "docs/a.md".to_owned(), text: text.to_owned() };
        let blocks = page.blocks("sh");
        let seen: Vec<_> = blocks.iter().map(|block| (block.heading.as_str(), block.text.as_str())).collect();
        assert_eq!(seen, [("A", "# no heading\none\n"), ("B", "two\n  three\n")]);
        assert_eq!(page.blocks("yaml").len(), 1);
        assert_eq!(page.indented().collect::<Vec<_>>(), ["    four:"]);
    }

    /// What is indented is neither applied nor run. Keys of Kubernetes and of the chart begin with a small letter.
    #[test]
    fn yaml_is_shown_in_blocks_that_a_test_applies() {
        let is_key = |line: &str| {
            line.trim_start().split_once(':').is_some_and(|(key, value)| {
                key.starts_with(|one: char| one.is_ascii_lowercase())
                    && key.chars().all(|one| one.is_ascii_alphanumeric())
                    && (value.is_empty() || value.starts_with(' '))
            })
        };
        assert!(is_key("    mountOptions:") && !is_key("    Reason:  none") && !is_key("    s3://bucket"));
        for page in all() {
            assert_eq!(
                page.indented().find(|line| is_key(line)),
                None,
                "{}: make it a ```yaml block",
                page.name
            );
        }
    }
}
