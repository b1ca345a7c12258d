//! Copies of the checkout, to build from another folder.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

/// Build output, which is not copied.
const LEFT_OUT: &[&str] = &[".git", "target"];

/// Makes `to` equal to `from`. Unchanged files keep their modification time, so that Cargo compiles only what changed.
pub fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let wanted = names(from)?;
    for name in names(to)?.difference(&wanted) {
        let gone = to.join(name);
        if gone.is_dir() { fs::remove_dir_all(gone)? } else { fs::remove_file(gone)? }
    }
    for name in &wanted {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            mirror(&from, &to)?;
        } else {
            let content = fs::read(from)?;
            if fs::read(&to).is_ok_and(|present| present == content) {
                continue;
            }
            fs::write(to, content)?;
        }
    }
    Ok(())
}

/// Changes the version of all crates of a copy.
pub fn set_version(copy: &Path, version: &str) -> Result<()> {
    let manifest = copy.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    // At the start of a line; dependencies have theirs after their names.
    let parts: Vec<&str> = text.split("\nversion = \"").collect();
    let [front, back] = parts[..] else {
        bail!("{} has {} lines with a version instead of one", manifest.display(), parts.len() - 1);
    };
    let rest = back.split_once('"').map_or("", |(_, rest)| rest);
    Ok(fs::write(&manifest, format!("{front}\nversion = \"{version}\"{rest}"))?)
}

fn names(folder: &Path) -> Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        names.insert(entry?.file_name());
    }
    names.retain(|name| !LEFT_OUT.iter().any(|out| name == out));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn the_version_is_changed_and_nothing_else() {
        let copy = tempfile::tempdir().unwrap();
        let manifest = |version: &str| format!("[p]\nversion = \"{version}\"\na = {{version = \"0.1.0\"}}\n");
        let file = copy.path().join("Cargo.toml");
        fs::write(&file, manifest("0.1.0")).unwrap();
        set_version(copy.path(), "99.0.0").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), manifest("99.0.0"));
        fs::write(&file, "[p]\n").unwrap();
        assert!(set_version(copy.path(), "99.0.0").is_err());
    }

    #[test]
    fn only_what_differs_is_written() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (file, text) in [("src/a.rs", "a"), ("src/b.rs", "b"), ("target/out", "o")] {
            let file = from.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let mirror = || mirror(from.path(), to.path()).unwrap();
        mirror();
        let long_ago = SystemTime::UNIX_EPOCH;
        let copy = |name: &str| fs::File::options().append(true).open(to.path().join(name)).unwrap();
        for name in ["src/a.rs", "src/b.rs"] {
            copy(name).set_modified(long_ago).unwrap();
        }
        fs::write(from.path().join("src/b.rs"), "c").unwrap();
        fs::create_dir(to.path().join("gone")).unwrap();
        mirror();
        let is_old = |name: &str| copy(name).metadata().unwrap().modified().unwrap() == long_ago;
        assert!(is_old("src/a.rs") && !is_old("src/b.rs"));
        assert!(!to.path().join("gone").exists() && !to.path().join("target").exists());
    }
}
