//! Random operations by several programs on one mount, and by another client of the bucket. Each result must be one that the
//! model of a folder allows, and what was acknowledged must be in the bucket. A failure shows the seed and the last steps;
//! `S3_CSI_SEED` chooses other seeds: `S3_CSI_SEED=17,18 cargo xtask test --only kernel whatever`.

use std::fs;
use std::os::unix::fs::chown;
use std::thread;
use std::time::Duration;

use s3_csi_tests::folder::{Folder, Id, Outcome, Random, Step, choose, close};
use s3_csi_tests::mountpoint_pod::{self, MountpointPod, USER};
use xtask::s3::ALICE;

use crate::faults::Faults;
use crate::files::served;
use crate::place::{Place, Program};

/// For each folder; all together take less than ten seconds on two quiet cores, and about half a minute on busy ones.
const STEPS: Id = 400;
/// Of folders of the same mount, each with its own programs and its own model. The later ones have met what others do not.
const SEEDS: [u64; 5] = [1, 2, 3, 6, 51];
/// Of folders in which two programs do something at the same time.
const TOGETHER_SEEDS: [u64; 4] = [1, 2, 3, 4];
/// Of mounts whose processes die and move.
const DEADLY_SEEDS: [u64; 4] = [1, 2, 3, 53];
/// Programs of one folder.
const ACTORS: usize = 2;
/// Attempts to find a step that another program can do at the same time.
const TRIES: usize = 10;
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
/// Does the steps while something happens to the mount process, if anything does.
fn act(
    (place, programs): (&Place<'_>, &mut [Program]),
    faults: Option<&mut Faults>,
    steps: &[(usize, Step)],
) -> (Result<Vec<Outcome>, String>, String) {
    let Some((faults, fault)) = faults.and_then(|faults| faults.next().map(|fault| (faults, fault))) else {
        return (place.act(programs, steps), String::new());
    };
    if fault.after.is_zero() {
        faults.happen(fault);
        return (place.act(programs, steps), format!("{fault:?} "));
    }
    let outcomes = thread::scope(|scope| {
        scope.spawn(move || faults.happen(fault));
        place.act(programs, steps)
    });
    (outcomes, format!("{fault:?} "))
}

/// The next step, or two of them for two programs at the same time. Without any, all files are closed.
fn next(random: &mut Random, folder: &Folder, number: Id, together: bool) -> Option<Vec<(usize, Step)>> {
    if number >= STEPS {
        return close(folder).map(|step| vec![step]);
    }
    let first = choose(random, folder, ACTORS, 2 * number);
    let mut others = (0..TRIES).filter(|_| together).map(|_| choose(random, folder, ACTORS, 2 * number + 1));
    let other = others.find(|other| folder.are_independent(&first, other));
    let mut steps: Vec<_> = [first].into_iter().chain(other).collect();
    steps.sort_by_key(|(actor, _)| *actor);
    Some(steps)
}

fn play(
    place: &Place<'_>,
    seed: u64,
    mut random: Random,
    together: bool,
    mut faults: Option<&mut Faults>,
) -> Result<(), String> {
    let mut programs: Vec<_> = (0..ACTORS).map(|_| Program::start()).collect();
    let mut folder = Folder::new(place.objects());
    let mut shown = Vec::new();
    for number in 0.. {
        let Some(steps) = next(&mut random, &folder, number, together) else { break };
        let (outcomes, fault) = act((place, &mut programs), faults.as_deref_mut(), &steps);
        shown.push(format!("{number}: {fault}programs {steps:?} -> {outcomes:?}"));
        if let Err(reason) = outcomes.and_then(|outcomes| place.judge(&mut folder, &steps, &outcomes)) {
            let last = &shown[shown.len().saturating_sub(SHOWN)..];
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
        let place = Place::new(&client, "random", served.path(&prefix), prefix);
        play(&place, seed, Random::new(seed), false, None)
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// With different names. The order in which the threads of the mount process handle their requests is not that of the seed.
#[test]
fn whatever_two_programs_do_at_once_the_bucket_holds_what_was_acknowledged() {
    let (client, _pod, served) = served("random-together", &OPTIONS);
    let failures = failures(&TOGETHER_SEEDS, |seed| {
        let prefix = format!("folder-{seed}/");
        let place = Place::new(&client, "random-together", served.path(&prefix), prefix);
        play(&place, seed, Random::new(seed), true, None)
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
        let place = Place::new(&client, &bucket, served.path("folder"), format!("{prefix}folder/"));
        let mut faults = Faults::new(pods, Random::new(seed), bucket.clone(), options);
        let random = Random::among_deaths(seed);
        // What others do may stay unseen for as long as the metadata live.
        let is_alone = options.iter().any(|option| option.starts_with("--metadata-ttl"));
        let random = if is_alone { random.without_other_client() } else { random };
        let played = play(&place, seed, random, false, Some(&mut faults));
        assert!(faults.deaths > 0 && faults.moves > 0, "{} deaths, {} moves", faults.deaths, faults.moves);
        // For the last lines of the pods' logs, which the failure shows.
        if played.is_err() {
            thread::sleep(Duration::from_secs(2));
        }
        played.map_err(|failure| format!("{failure}\n{}", faults.log()))
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
