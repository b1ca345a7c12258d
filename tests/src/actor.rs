//! A program that holds files open and does with them what it is told: a process of its own, so that the mount sees several.
//! Each order has a deadline: a process that touches a stuck mount waits without end, so that must never be the test itself.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Files are known by numbers that the test gives them. Contents come from and go to other files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// For writing from nothing, or for reading.
    Open {
        file: u32,
        path: PathBuf,
        write: bool,
    },
    Write {
        file: u32,
        from: PathBuf,
    },
    Duplicate {
        file: u32,
        to: u32,
    },
    Close {
        file: u32,
    },
    Sync {
        file: u32,
    },
    Cut {
        file: u32,
        length: u64,
    },
    /// Starts a program that writes the text to the file, which is its standard output.
    Echo {
        file: u32,
        text: String,
    },
    /// All of it, from the beginning.
    ReadOpen {
        file: u32,
        into: PathBuf,
    },
    Read {
        path: PathBuf,
        into: PathBuf,
    },
    List {
        path: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    Rename {
        path: PathBuf,
        to: PathBuf,
    },
    Truncate {
        path: PathBuf,
        length: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Names(Vec<String>),
    /// The error number, or 0 if only the failure is known.
    Failed(i32),
}

/// The test's end.
pub struct Actor {
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Actor {
    pub fn start(program: &Path) -> Self {
        let mut process = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let _ = sender.send(line);
            }
        });
        Self { process, orders, answers }
    }

    /// Without an answer in time, the process is killed.
    pub fn obey(&mut self, order: &Order, limit: Duration) -> Result<Answer, String> {
        let sent = writeln!(self.orders, "{}", serde_json::to_string(order).unwrap());
        let answer = sent.map_err(|error| error.to_string()).and_then(|()| {
            self.answers.recv_timeout(limit).map_err(|error| format!("no answer within {limit:?}: {error}"))
        });
        let line = answer.inspect_err(|_| self.kill())?;
        Ok(serde_json::from_str(&line).unwrap())
    }

    fn kill(&mut self) {
        // Not waited for: it may be stuck on the mount until that ends.
        let _ = self.process.kill();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program's end: obeys until there are no more orders.
pub fn run() {
    let mut files = HashMap::new();
    for line in io::stdin().lines() {
        let order = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = match obey(&mut files, order) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(error.raw_os_error().unwrap_or_default()),
        };
        println!("{}", serde_json::to_string(&answer).unwrap());
    }
}

fn obey(files: &mut HashMap<u32, File>, order: Order) -> io::Result<Answer> {
    let file = |number: u32| files.get(&number).ok_or_else(|| io::Error::from_raw_os_error(0));
    match order {
        Order::Open { file, path, write } => {
            let opened = if write { File::create(path)? } else { File::open(path)? };
            files.insert(file, opened);
        }
        Order::Write { file: number, from } => file(number)?.write_all(&fs::read(from)?)?,
        Order::Duplicate { file: number, to } => {
            let duplicate = file(number)?.try_clone()?;
            files.insert(to, duplicate);
        }
        Order::Close { file } => {
            let file = files.remove(&file).ok_or_else(|| io::Error::from_raw_os_error(0))?;
            nix::unistd::close(file)?;
        }
        Order::Sync { file: number } => file(number)?.sync_all()?,
        Order::Cut { file: number, length } => file(number)?.set_len(length)?,
        Order::Echo { file: number, text } => {
            let output = file(number)?.try_clone()?;
            let status = Command::new("/bin/echo")
                .args(["-n", &text])
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(Stdio::null())
                .status()?;
            return Ok(if status.success() { Answer::Done } else { Answer::Failed(0) });
        }
        Order::ReadOpen { file: number, into } => {
            let mut file = file(number)?;
            let mut content = Vec::new();
            file.seek(SeekFrom::Start(0))?;
            file.read_to_end(&mut content)?;
            fs::write(into, content)?;
        }
        Order::Read { path, into } => fs::write(into, fs::read(path)?)?,
        Order::List { path } => {
            let names =
                fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            return Ok(Answer::Names(names.collect::<io::Result<_>>()?));
        }
        Order::Remove { path } => fs::remove_file(path)?,
        Order::Rename { path, to } => fs::rename(path, to)?,
        Order::Truncate { path, length } => {
            File::options().write(true).open(path)?.set_len(length)?;
        }
    }
    Ok(Answer::Done)
}
