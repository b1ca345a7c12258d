//! Programs that read many small files at the same time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::thread;

use crate::files::relayed;

/// As the workers of a program that trains a model.
const READERS: usize = 32;

/// What was fetched for one of them when it opened its file is not dropped for another.
#[test]
fn files_that_are_open_at_the_same_time_are_fetched_once() {
    let (client, _pod, served, relay) = relayed("fetched-once", &[]);
    for number in 0..READERS {
        client.put("fetched-once", &format!("folder/{number}"), format!("{number}").as_bytes()).unwrap();
    }
    assert_eq!(served.list("folder").unwrap().len(), READERS);
    let before = relay.requests().len();
    let contents = served.touch("folder", |folder| {
        let paths = (0..READERS).map(|number| folder.join(number.to_string())).collect();
        let files = at_once(paths, File::open)?;
        at_once(files, |mut file| {
            let mut content = String::new();
            file.read_to_string(&mut content).map(|_| content)
        })
    });
    let numbers: Vec<String> = (0..READERS).map(|number| number.to_string()).collect();
    assert_eq!(contents.unwrap(), numbers);
    let made = relay.requests().split_off(before);
    let mut fetched: BTreeMap<&str, usize> = BTreeMap::new();
    for name in made.iter().filter_map(|request| request.strip_prefix("GET ")?.split_once("/folder/")) {
        *fetched.entry(name.1).or_default() += 1;
    }
    assert_eq!(fetched.len(), READERS, "{made:?}");
    assert!(fetched.values().all(|times| *times == 1), "{fetched:?}");
}

/// Each on a thread of its own; all of them have returned then.
fn at_once<A: Send, B: Send>(
    given: Vec<A>,
    act: impl Fn(A) -> io::Result<B> + Copy + Send + Sync,
) -> io::Result<Vec<B>> {
    thread::scope(|scope| {
        let threads: Vec<_> = given.into_iter().map(|it| scope.spawn(move || act(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
