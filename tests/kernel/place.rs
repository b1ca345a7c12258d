//! A folder of a mount, the programs that use it, and the other client of its bucket.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use s3_csi_tests::actor::{Actor, Answer, Order};
use s3_csi_tests::folder::{Content, Folder, Id, Objects, Outcome, Step};
use s3_csi_tests::mountpoint_pod::LIMIT;
use tempfile::TempDir;
use xtask::s3::{Client, Refused};

/// Keeps the folder in the bucket when all its files are deleted.
const KEEPER: &str = "keeper";

pub(crate) struct Place<'a> {
    client: &'a Client,
    bucket: &'a str,
    prefix: String,
    mounted: PathBuf,
}

impl<'a> Place<'a> {
    pub(crate) fn new(client: &'a Client, bucket: &'a str, mounted: PathBuf, prefix: String) -> Self {
        client.put(bucket, &format!("{prefix}{KEEPER}"), b"x").unwrap();
        Self { client, bucket, prefix, mounted }
    }

    pub(crate) fn objects(&self) -> Objects {
        let keys = self.client.objects(self.bucket, &self.prefix).unwrap();
        let objects = keys.iter().filter_map(|key| {
            let content = match self.client.get(self.bucket, key) {
                // While the server replaces an object, it may have none for a moment.
                Err(error) if error.downcast_ref::<Refused>().is_some_and(|it| it.status == 404) => {
                    return None;
                }
                content => content.unwrap(),
            };
            Some((key.strip_prefix(&self.prefix).unwrap().to_owned(), content))
        });
        objects.collect()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.join(name)
    }

    /// Does each step with the program of that number, all at the same time. They are in the order of these numbers.
    pub(crate) fn act(
        &self,
        programs: &mut [Program],
        steps: &[(usize, Step)],
    ) -> Result<Vec<Outcome>, String> {
        thread::scope(|scope| {
            let acting = programs.iter_mut().enumerate().filter_map(|(actor, program)| {
                let (_, step) = steps.iter().find(|(chosen, _)| *chosen == actor)?;
                Some(scope.spawn(move || program.act(self, step)))
            });
            let acting: Vec<_> = acting.collect();
            acting.into_iter().map(|acting| acting.join().unwrap()).collect()
        })
    }

    pub(crate) fn judge(
        &self,
        folder: &mut Folder,
        steps: &[(usize, Step)],
        outcomes: &[Outcome],
    ) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut next = folder.clone();
            let ends_later = || steps.iter().any(|(_, step)| folder.ends_later(step));
            match next.steps(steps, outcomes, &self.objects()) {
                Err(_) if ends_later() && Instant::now() < deadline => {}
                verdict => {
                    *folder = next;
                    return verdict;
                }
            }
        }
    }
}

pub(crate) struct Program {
    actor: Actor,
    /// Where contents are exchanged with it.
    scratch: TempDir,
    /// The actor's own numbers of each open file: one for each descriptor.
    descriptors: BTreeMap<Id, Vec<u32>>,
    last: u32,
}

impl Program {
    pub(crate) fn start() -> Self {
        let actor = Actor::start(Path::new(env!("CARGO_BIN_EXE_actor")));
        Self { actor, scratch: TempDir::new().unwrap(), descriptors: BTreeMap::new(), last: 0 }
    }

    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn descriptor(&self, file: Id) -> u32 {
        *self.descriptors[&file].last().unwrap()
    }

    fn obey(&mut self, order: &Order) -> Result<Answer, String> {
        self.actor.obey(order, LIMIT)
    }

    /// Fails if there is no outcome in time.
    fn act(&mut self, place: &Place<'_>, step: &Step) -> Result<Outcome, String> {
        let scratch = self.scratch.path().join("content");
        let order = match step {
            Step::Open { file, name, write, .. } => {
                let number = self.number();
                let order = Order::Open { file: number, path: place.path(name), write: *write };
                let answer = self.obey(&order)?;
                if answer == Answer::Done {
                    self.descriptors.insert(*file, vec![number]);
                }
                return Ok(outcome(answer, None));
            }
            Step::Duplicate { file, .. } => {
                let to = self.number();
                let answer = self.obey(&Order::Duplicate { file: self.descriptor(*file), to })?;
                self.descriptors.get_mut(file).unwrap().push(to);
                return Ok(outcome(answer, None));
            }
            Step::Close { file, .. } => {
                Order::Close { file: self.descriptors.get_mut(file).unwrap().pop().unwrap() }
            }
            Step::Write { file, content } => {
                fs::write(&scratch, &content.0).unwrap();
                Order::Write { file: self.descriptor(*file), from: scratch }
            }
            Step::Sync { file } => Order::Sync { file: self.descriptor(*file) },
            Step::Cut { file, length } => Order::Cut { file: self.descriptor(*file), length: *length },
            Step::Echo { file, content, .. } => {
                let text = String::from_utf8(content.0.clone()).unwrap();
                Order::Echo { file: self.descriptor(*file), text }
            }
            Step::ReadOpen { file } => {
                let order = Order::ReadOpen { file: self.descriptor(*file), into: scratch.clone() };
                return Ok(outcome(self.obey(&order)?, Some(&scratch)));
            }
            Step::Read { name } => {
                let order = Order::Read { path: place.path(name), into: scratch.clone() };
                return Ok(outcome(self.obey(&order)?, Some(&scratch)));
            }
            Step::List => Order::List { path: place.mounted.clone() },
            Step::Remove { name } => Order::Remove { path: place.path(name) },
            Step::Rename { name, to } => Order::Rename { path: place.path(name), to: place.path(to) },
            Step::Truncate { name, length } => Order::Truncate { path: place.path(name), length: *length },
            Step::PutElsewhere { name, content } => {
                place.client.put(place.bucket, &place.key(name), &content.0).unwrap();
                return Ok(Outcome::Done);
            }
            Step::DeleteElsewhere { name } => {
                place.client.delete(place.bucket, &place.key(name)).unwrap();
                return Ok(Outcome::Done);
            }
        };
        Ok(outcome(self.obey(&order)?, None))
    }
}

fn outcome(answer: Answer, read: Option<&Path>) -> Outcome {
    match (answer, read) {
        (Answer::Done, Some(path)) => Outcome::Content(Content(fs::read(path).unwrap())),
        (Answer::Done, None) => Outcome::Done,
        (Answer::Names(names), _) => Outcome::Names(names.into_iter().collect()),
        (Answer::Failed(errno), _) => Outcome::Failed(errno),
    }
}
