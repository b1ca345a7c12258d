//! The program of test pods that check every byte they read and record every file whose close succeeded. Their image contains
//! xtask itself. The record is on the node's disk, so that it outlives the container, the pod and a power cut.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use jiff::Timestamp;

/// Bytes of one call of the program.
const PIECE: usize = 64 << 10;
/// Every so many files, a large one: more than one part of an upload.
const LARGE_EVERY: u64 = 40;
/// Bytes.
pub const LARGE: usize = 9 << 20;
/// Bytes of the other files, at most.
const SMALL: u64 = 64 << 10;
/// Between two files: enough files for every fault, few enough for the disk.
const PAUSE: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Writes new files.
    Write,
    /// Reads all files, and exits with the first error, so that the kubelet restarts it.
    Read,
    /// Does nothing until the file `RECORD.ask` appears; then reads one file.
    Wait,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Wait => "wait",
        }
    }
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Milliseconds since 1970.
    pub at: i64,
    pub what: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file was read and was right, or its close succeeded.
    Done(String),
    /// The error number, or 0.
    Failed(i32, String),
    /// Bytes that no program has written.
    Wrong(String),
}

impl Entry {
    fn line(&self) -> String {
        match &self.what {
            Outcome::Done(name) => format!("{} done {name}\n", self.at),
            Outcome::Failed(error, name) => format!("{} failed {error} {name}\n", self.at),
            Outcome::Wrong(name) => format!("{} wrong {name}\n", self.at),
        }
    }

    /// None for the line that a power cut left half-written.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let what = match words.next()? {
            "done" => Outcome::Done(words.next()?.to_owned()),
            "failed" => Outcome::Failed(words.next()?.parse().ok()?, words.next()?.to_owned()),
            "wrong" => Outcome::Wrong(words.next()?.to_owned()),
            _ => return None,
        };
        Some(Self { at, what })
    }
}

/// The name of a file with this length. The name determines the content.
pub fn name(prefix: &str, length: usize) -> String {
    format!("{prefix}-{length}")
}

/// The length of the file with this name, in bytes.
pub fn length(name: &str) -> Option<usize> {
    name.rsplit('-').next()?.parse().ok()
}

/// The content of the file with this name.
pub fn content(name: &str) -> Option<Vec<u8>> {
    let length = length(name)?;
    // FNV-1a of the name, then a SplitMix64 of it: no two files have the same bytes at the same place.
    let mut state = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        content.extend((mixed ^ (mixed >> 27)).to_le_bytes());
    }
    content.truncate(length);
    Some(content)
}

/// Runs until it is killed, or until a reader's first error.
pub fn run(role: Role, folder: &Path, record: &Path) -> Result<()> {
    let file = File::options().create(true).append(true).open(record);
    let file = file.with_context(|| format!("cannot open {}", record.display()))?;
    let say = |what| {
        let at = Timestamp::now().as_millisecond();
        (&file).write_all(Entry { at, what }.line().as_bytes())
    };
    let began = Timestamp::now().as_millisecond();
    let ask = PathBuf::from(format!("{}.ask", record.display()));
    for number in 0_u64.. {
        match role {
            Role::Write => {
                let length = if number % LARGE_EVERY == 7 { LARGE } else { small(began, number) };
                let name = name(&format!("{}-{began}-{number}", stem(record)), length);
                say(outcome(write(&folder.join(&name), &name).map(|()| true), name))?;
            }
            Role::Read => {
                let read_all = names(folder).map(|names| {
                    names.into_iter().map(|name| outcome(read(&folder.join(&name), &name), name))
                });
                match read_all {
                    Ok(all) => {
                        for what in all {
                            let good = matches!(what, Outcome::Done(_));
                            say(what)?;
                            ensure!(good, "restart me");
                        }
                    }
                    Err(error) => {
                        say(outcome(Err(error), "folder".to_owned()))?;
                        bail!("restart me");
                    }
                }
            }
            Role::Wait if ask.exists() => {
                fs::remove_file(&ask)?;
                let first = names(folder).map(|names| names.into_iter().next().unwrap_or_default());
                let name = first.as_ref().ok().cloned().unwrap_or_else(|| "folder".to_owned());
                say(outcome(first.and_then(|name| read(&folder.join(&name), &name)), name))?;
            }
            Role::Wait => {}
        }
        sleep(PAUSE);
    }
    Ok(())
}

fn outcome(result: io::Result<bool>, name: String) -> Outcome {
    match result {
        Ok(true) => Outcome::Done(name),
        Ok(false) => Outcome::Wrong(name),
        Err(error) => Outcome::Failed(error.raw_os_error().unwrap_or_default(), name),
    }
}

fn stem(record: &Path) -> String {
    record.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn small(began: i64, number: u64) -> usize {
    let mixed = (began.unsigned_abs() ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from((mixed >> 32) % SMALL).unwrap_or_default() + 1
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn write(path: &Path, name: &str) -> io::Result<()> {
    let content = content(name).unwrap_or_default();
    let mut file = File::create_new(path)?;
    for piece in content.chunks(PIECE) {
        file.write_all(piece)?;
    }
    // Dropping the file would not report that its upload failed.
    Ok(nix::unistd::close(file)?)
}

/// Whether the file has the content of its name.
fn read(path: &Path, name: &str) -> io::Result<bool> {
    let mut read = Vec::new();
    File::open(path)?.read_to_end(&mut read)?;
    Ok(content(name).is_some_and(|content| content == read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for what in [
            Outcome::Done("a-1".to_owned()),
            Outcome::Failed(107, "b-2".to_owned()),
            Outcome::Wrong("c".to_owned()),
        ] {
            let entry = Entry { at: 17, what };
            assert_eq!(Entry::parse(entry.line().trim_end()), Some(entry));
        }
        assert_eq!(Entry::parse("1763318400000 don"), None);
        assert_eq!(Entry::parse(""), None);
    }

    #[test]
    fn the_name_determines_the_content() {
        let [one, other] = ["one", "other"].map(|prefix| content(&name(prefix, 1003)).unwrap());
        assert_eq!(one.len(), 1003);
        assert_ne!(one, other);
        assert_eq!(content(&name("one", 1003)), Some(one));
        assert_eq!(content("no length"), None);
    }

    #[test]
    fn a_file_that_differs_by_a_byte_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let name = name("file", 70_000);
        let path = folder.path().join(&name);
        write(&path, &name).unwrap();
        assert!(read(&path, &name).unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[69_999] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(!read(&path, &name).unwrap());
    }
}
