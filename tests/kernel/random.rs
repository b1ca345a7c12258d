//! Random operations by several programs on one mount, and by another client of the bucket. Each result must be one that the
//! model of a folder allows, and what was acknowledged must be in the bucket. A failure shows the seed and the last steps;
//! `S3_CSI_SEED` chooses other seeds: `S3_CSI_SEED=17,18 cargo xtask test --only kernel whatever`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use s3_csi_tests::actor::{Actor, Answer, Order};
use s3_csi_tests::folder::{Content, Folder, Id, Objects, Outcome, Random, Step, choose, close};
use s3_csi_tests::mountpoint_pod::{self, LIMIT, MountpointPod, USER};
use tempfile::TempDir;
use xtask::s3::{ALICE, Client, Refused};

use crate::faults::Faults;
use crate::files::served;

/// For each folder; all together take less than ten seconds on two quiet cores, and about half a minute on busy ones.
const STEPS: Id = 400;
/// Of folders of the same mount, each with its own programs and its own model. The later ones have met what others do not.
const SEEDS: [u64; 5] = [1, 2, 3, 6, 51];
/// Of mounts whose processes die and move.
const DEADLY_SEEDS: [u64; 4] = [1, 2, 3, 53];
/// Programs of one folder.
const ACTORS: usize = 2;
/// Steps that a failure shows.
const SHOWN: usize = 100;
const OPTIONS: [&str; 3] = ["--allow-delete", "--allow-overwrite", "--rename-by-copy"];
/// One of them for each mount whose process dies and moves, and what all keys in the bucket begin with. Each pod has a cache of
/// its own: the folder is below the one that it shares with the node.
const VARIANTS: [(&[&str], &str); 3] = [
    (&["--allow-delete", "--allow-overwrite", "--rename-by-copy", "--metadata-ttl=60", "--cache=cache"], ""),
    (&OPTIONS, ""),
    (&["--allow-delete", "--allow-overwrite", "--rename-by-copy", "--prefix=outer/"], "outer/"),
];
/// Keeps the folder in the bucket when all its files are deleted.
const KEEPER: &str = "keeper";

/// One folder of the mount.
struct Place<'a> {
    client: &'a Client,
    bucket: &'a str,
    prefix: String,
    mounted: PathBuf,
    /// Where contents are exchanged with the actors.
    scratch: TempDir,
    actors: Vec<Actor>,
    /// The actors' own numbers of each open file: one for each descriptor.
    descriptors: BTreeMap<(usize, Id), Vec<u32>>,
    last: u32,
}

impl<'a> Place<'a> {
    fn new(client: &'a Client, bucket: &'a str, mounted: PathBuf, prefix: String) -> Self {
        client.put(bucket, &format!("{prefix}{KEEPER}"), b"x").unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_actor"));
        let actors = (0..ACTORS).map(|_| Actor::start(program)).collect();
        let scratch = TempDir::new().unwrap();
        Self { client, bucket, prefix, mounted, scratch, actors, descriptors: BTreeMap::new(), last: 0 }
    }

    fn objects(&self) -> Objects {
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

    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn descriptor(&self, actor: usize, file: Id) -> u32 {
        *self.descriptors[&(actor, file)].last().unwrap()
    }

    fn obey(&mut self, actor: usize, order: &Order) -> Result<Answer, String> {
        self.actors[actor].obey(order, LIMIT)
    }

    /// Fails if there is no outcome in time.
    fn act(&mut self, actor: usize, step: &Step) -> Result<Outcome, String> {
        let scratch = self.scratch.path().join("content");
        let order = match step {
            Step::Open { file, name, write, .. } => {
                let number = self.number();
                let order = Order::Open { file: number, path: self.path(name), write: *write };
                let answer = self.obey(actor, &order)?;
                if answer == Answer::Done {
                    self.descriptors.insert((actor, *file), vec![number]);
                }
                return Ok(outcome(answer, None));
            }
            Step::Duplicate { file, .. } => {
                let to = self.number();
                let order = Order::Duplicate { file: self.descriptor(actor, *file), to };
                let answer = self.obey(actor, &order)?;
                self.descriptors.get_mut(&(actor, *file)).unwrap().push(to);
                return Ok(outcome(answer, None));
            }
            Step::Close { file, .. } => {
                let number = self.descriptors.get_mut(&(actor, *file)).unwrap().pop().unwrap();
                Order::Close { file: number }
            }
            Step::Write { file, content } => {
                fs::write(&scratch, &content.0).unwrap();
                Order::Write { file: self.descriptor(actor, *file), from: scratch }
            }
            Step::Sync { file } => Order::Sync { file: self.descriptor(actor, *file) },
            Step::Cut { file, length } => Order::Cut { file: self.descriptor(actor, *file), length: *length },
            Step::Echo { file, content, .. } => {
                let text = String::from_utf8(content.0.clone()).unwrap();
                Order::Echo { file: self.descriptor(actor, *file), text }
            }
            Step::ReadOpen { file } => {
                let order = Order::ReadOpen { file: self.descriptor(actor, *file), into: scratch.clone() };
                return Ok(outcome(self.obey(actor, &order)?, Some(&scratch)));
            }
            Step::Read { name } => {
                let order = Order::Read { path: self.path(name), into: scratch.clone() };
                return Ok(outcome(self.obey(actor, &order)?, Some(&scratch)));
            }
            Step::List => Order::List { path: self.mounted.clone() },
            Step::Remove { name } => Order::Remove { path: self.path(name) },
            Step::Rename { name, to } => Order::Rename { path: self.path(name), to: self.path(to) },
            Step::Truncate { name, length } => Order::Truncate { path: self.path(name), length: *length },
            Step::PutElsewhere { name, content } => {
                self.client.put(self.bucket, &self.key(name), &content.0).unwrap();
                return Ok(Outcome::Done);
            }
            Step::DeleteElsewhere { name } => {
                self.client.delete(self.bucket, &self.key(name)).unwrap();
                return Ok(Outcome::Done);
            }
        };
        Ok(outcome(self.obey(actor, &order)?, None))
    }

    fn judge(&self, folder: &mut Folder, step: &Step, outcome: &Outcome) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut next = folder.clone();
            match next.step(step, outcome, &self.objects()) {
                Err(_) if folder.ends_later(step) && Instant::now() < deadline => {}
                verdict => {
                    *folder = next;
                    return verdict;
                }
            }
        }
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

/// Does the step while something happens to the mount process, if anything does.
fn act(
    place: &mut Place<'_>,
    faults: Option<&mut Faults>,
    actor: usize,
    step: &Step,
) -> (Result<Outcome, String>, String) {
    let Some((faults, fault)) = faults.and_then(|faults| faults.next().map(|fault| (faults, fault))) else {
        return (place.act(actor, step), String::new());
    };
    if fault.after.is_zero() {
        faults.happen(fault);
        return (place.act(actor, step), format!("{fault:?} "));
    }
    let outcome = thread::scope(|scope| {
        scope.spawn(move || faults.happen(fault));
        place.act(actor, step)
    });
    (outcome, format!("{fault:?} "))
}

fn play(
    place: &mut Place<'_>,
    seed: u64,
    mut random: Random,
    mut faults: Option<&mut Faults>,
) -> Result<(), String> {
    let mut folder = Folder::new(place.objects());
    let mut steps = Vec::new();
    for number in 0.. {
        let chosen =
            if number < STEPS { Some(choose(&mut random, &folder, ACTORS, number)) } else { close(&folder) };
        let Some((actor, step)) = chosen else { break };
        let (outcome, fault) = act(place, faults.as_deref_mut(), actor, &step);
        let shown = outcome.as_ref().map_or_else(Clone::clone, |outcome| format!("{outcome:?}"));
        steps.push(format!("{number}: {fault}program {actor}: {step:?} -> {shown}"));
        if let Err(reason) = outcome.and_then(|outcome| place.judge(&mut folder, &step, &outcome)) {
            let last = &steps[steps.len().saturating_sub(SHOWN)..];
            return Err(format!("S3_CSI_SEED={seed}: {reason}\n{}", last.join("\n")));
        }
    }
    Ok(())
}

/// The same in every run: a change is judged by what it does, not by its luck.
fn seeds(fixed: &[u64]) -> Vec<u64> {
    let seeds = match std::env::var("S3_CSI_SEED") {
        Ok(given) => given.split(',').map(|seed| seed.parse().unwrap()).collect(),
        Err(_) => fixed.to_vec(),
    };
    println!("seeds: {seeds:?}");
    seeds
}

/// Each seed at once with all others; what was wrong.
fn failures(fixed: &[u64], play: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    thread::scope(|scope| {
        let play = &play;
        let playing: Vec<_> = seeds(fixed).into_iter().map(|seed| scope.spawn(move || play(seed))).collect();
        playing.into_iter().filter_map(|playing| playing.join().unwrap().err()).collect()
    })
}

#[test]
fn whatever_programs_do_the_bucket_holds_what_was_acknowledged() {
    let (client, _pod, served) = served("random", &OPTIONS);
    let failures = failures(&SEEDS, |seed| {
        let prefix = format!("folder-{seed}/");
        let mut place = Place::new(&client, "random", served.path(&prefix), prefix);
        play(&mut place, seed, Random::new(seed), None)
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The same programs and the same other client, judged by the same model. Each folder has a mount of its own, so that a seed
/// decides its faults, too.
#[test]
fn whatever_programs_do_deaths_and_moves_of_mount_processes_change_nothing() {
    let failures = failures(&DEADLY_SEEDS, |seed| {
        let bucket = format!("random-faults-{seed}");
        let (options, prefix) = VARIANTS[usize::try_from(seed).unwrap() % VARIANTS.len()];
        let client = mountpoint_pod::bucket(ALICE, &bucket);
        let pods = [(); 2].map(|()| MountpointPod::start());
        for pod in &pods {
            let cache = pod.comm.path().join("cache");
            fs::create_dir(&cache).unwrap();
            chown(cache, Some(USER), Some(USER)).unwrap();
        }
        let served = pods[0].serve(ALICE, &bucket, options);
        let mut place = Place::new(&client, &bucket, served.path("folder"), format!("{prefix}folder/"));
        let mut faults = Faults::new(pods, Random::new(seed), bucket.clone(), options);
        let random = Random::among_deaths(seed);
        // What others do may stay unseen for as long as the metadata live.
        let is_alone = options.iter().any(|option| option.starts_with("--metadata-ttl"));
        let random = if is_alone { random.without_other_client() } else { random };
        let played = play(&mut place, seed, random, Some(&mut faults));
        assert!(faults.deaths > 0 && faults.moves > 0, "{} deaths, {} moves", faults.deaths, faults.moves);
        if played.is_err() {
            thread::sleep(Duration::from_secs(2));
        }
        played.map_err(|failure| format!("{failure}\n{}", faults.log()))
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
