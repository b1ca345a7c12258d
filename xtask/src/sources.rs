//! Which sources the programs in the shared build folder were compiled from, so that a new clone compiles only what differs.
//!
//! Cargo detects changes by modification time alone, and its output does not say from which checkout it was built. In a clone,
//! files that another checkout has built get the modification time they had there, and files that differ become new.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What programs are compiled from, the same in each checkout.
const SHARED: &[&str] = &["charts", "crates"];
/// Programs that contain the path of their checkout.
const OWN: &[&str] = &["tests", "xtask"];

/// The checkout that uses a build folder until its command ends.
pub struct Sources {
    record: PathBuf,
    checkout: PathBuf,
    /// Another checkout's builds may be going on, or were killed: its files as they were compiled are not known.
    is_disturbed: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Record {
    checkout: PathBuf,
    /// None while its builds go on.
    files: Option<BTreeMap<PathBuf, State>>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    digest: String,
    /// Since the Unix epoch.
    modified: Duration,
}

impl Sources {
    /// To be called before our own code is compiled.
    pub fn adopt(target: &Path, checkout: &Path) -> Result<Self> {
        let record = target.join("sources.json");
        let last: Option<Record> = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_own = last.as_ref().is_some_and(|last| last.checkout == checkout);
        let is_disturbed = !is_own && last.as_ref().is_some_and(|last| last.files.is_none());
        let sources = Self { record, checkout: checkout.to_owned(), is_disturbed };
        fs::create_dir_all(target)?;
        sources.write(None)?;
        if !is_own {
            let built = last.and_then(|last| last.files).unwrap_or_default();
            for (path, state) in sources.files(SHARED)? {
                let same = built.get(&path).filter(|built| built.digest == state.digest);
                sources.set_modified(&path, same.map(|built| SystemTime::UNIX_EPOCH + built.modified))?;
            }
            for path in sources.files(OWN)?.keys() {
                sources.set_modified(path, None)?;
            }
        }
        Ok(sources)
    }

    /// To be called when nothing is compiled any more. A file that was edited meanwhile is newer than what contains it, so that its
    /// present state is the one to record.
    pub fn release(self) -> Result<()> {
        let claimed: Option<Record> =
            fs::read(&self.record).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if self.is_disturbed || claimed.is_none_or(|claimed| claimed.checkout != self.checkout) {
            // Nothing is known of the builds of two checkouts at once.
            return fs::remove_file(&self.record).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error).with_context(|| format!("cannot remove {}", self.record.display())),
            });
        }
        self.write(Some(self.files(SHARED)?))
    }

    fn write(&self, files: Option<BTreeMap<PathBuf, State>>) -> Result<()> {
        let record = Record { checkout: self.checkout.clone(), files };
        fs::write(&self.record, serde_json::to_vec(&record)?)
            .with_context(|| format!("cannot write {}", self.record.display()))
    }

    /// Below these folders, by path in the checkout.
    fn files(&self, folders: &[&str]) -> Result<BTreeMap<PathBuf, State>> {
        let mut files = BTreeMap::new();
        let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(self.checkout.join(&folder))? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else {
                    let digest = base16ct::lower::encode_string(&Sha256::digest(fs::read(entry.path())?));
                    let modified = entry.metadata()?.modified()?.duration_since(SystemTime::UNIX_EPOCH)?;
                    files.insert(path, State { digest, modified });
                }
            }
        }
        Ok(files)
    }

    /// At present, if no time is given.
    fn set_modified(&self, path: &Path, time: Option<SystemTime>) -> Result<()> {
        let file = fs::File::options().append(true).open(self.checkout.join(path))?;
        Ok(file.set_modified(time.unwrap_or_else(SystemTime::now))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "crates/a/src/lib.rs";
    const SUITE: &str = "tests/suite.rs";

    fn checkout() -> tempfile::TempDir {
        let checkout = tempfile::tempdir().unwrap();
        for file in [LIB, SUITE, "xtask/main.rs", "charts/values.yaml"] {
            let file = checkout.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "a").unwrap();
        }
        checkout
    }

    fn modified(checkout: &Path, file: &str) -> SystemTime {
        fs::metadata(checkout.join(file)).unwrap().modified().unwrap()
    }

    /// As `git clone` or an old editor may leave it.
    fn age(checkout: &Path, file: &str) -> SystemTime {
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        fs::File::options().append(true).open(checkout.join(file)).unwrap().set_modified(long_ago).unwrap();
        long_ago
    }

    #[test]
    fn a_clone_compiles_what_differs() {
        let [target, first, second] = [tempfile::tempdir().unwrap(), checkout(), checkout()];
        let adopt = |checkout: &tempfile::TempDir| Sources::adopt(target.path(), checkout.path()).unwrap();
        let long_ago = age(first.path(), LIB);
        let sources = adopt(&first);
        assert!(modified(first.path(), LIB) > long_ago, "nothing is known of what was built before");
        fs::write(first.path().join("charts/values.yaml"), "b").unwrap();
        let edited = modified(first.path(), "charts/values.yaml");
        sources.release().unwrap();

        for file in [SUITE, "charts/values.yaml"] {
            age(second.path(), file);
        }
        let built = modified(first.path(), LIB);
        let sources = adopt(&second);
        assert_eq!(modified(second.path(), LIB), built, "it was compiled by the other checkout");
        assert!(modified(second.path(), "charts/values.yaml") > edited, "it differs from what was compiled");
        assert!(modified(second.path(), SUITE) > built, "it contains the path of its checkout");
        sources.release().unwrap();
    }

    #[test]
    fn a_checkout_that_builds_again_is_left_alone() {
        let (target, checkout) = (tempfile::tempdir().unwrap(), checkout());
        let adopt = || Sources::adopt(target.path(), checkout.path()).unwrap();
        // It was killed, and another command of the same checkout goes on beside this one.
        drop(adopt());
        let beside = adopt();
        let long_ago = age(checkout.path(), LIB);
        adopt().release().unwrap();
        beside.release().unwrap();
        adopt().release().unwrap();
        assert_eq!(modified(checkout.path(), LIB), long_ago);
    }

    #[test]
    fn nothing_is_recorded_of_two_checkouts_at_once() {
        let [target, first, second, third] =
            [tempfile::tempdir().unwrap(), checkout(), checkout(), checkout()];
        let adopt = |checkout: &tempfile::TempDir| Sources::adopt(target.path(), checkout.path()).unwrap();
        let (one, other) = (adopt(&first), adopt(&second));
        one.release().unwrap();
        other.release().unwrap();
        let built = modified(second.path(), LIB);
        adopt(&third).release().unwrap();
        assert!(modified(third.path(), LIB) > built);
        // The first of them was killed, or ends last.
        let (one, other) = (adopt(&first), adopt(&second));
        other.release().unwrap();
        let long_ago = age(third.path(), LIB);
        adopt(&third).release().unwrap();
        assert!(modified(third.path(), LIB) > long_ago);
        one.release().unwrap();
        let long_ago = age(second.path(), LIB);
        adopt(&second).release().unwrap();
        assert!(modified(second.path(), LIB) > long_ago);
    }
}
