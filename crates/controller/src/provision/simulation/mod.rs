//! Crash at every step: random histories of a small cluster and its S3 server, in which claims, classes, Secrets, buckets
//! and volumes change under the provisioner, which is killed after any step and whose requests S3 answers late, twice or
//! never. At every moment each bucket is named by a volume, by a claim with the finalizer, or by an Event; in the end every
//! claim has its bucket; and nothing that belongs to others is touched.

mod cluster;
mod steps;

use std::collections::HashMap;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::cluster::{Answer, Cluster, FOREIGN, Secret, SimClaim};
use super::claims::account::BucketAccount;

#[derive(Clone, Debug)]
enum Event {
    CreateClaim(usize),
    DeleteClaim(usize),
    /// A tenant writes our finalizer and annotation on a claim, naming this bucket.
    Forge(usize, bool),
    Bind,
    EditClass,
    DeleteClass,
    SetSecret(Secret),
    Write(usize),
    Wait,
    /// With a cached claim of `age` events ago; killed after `steps`.
    Provision {
        claim: usize,
        age: usize,
        steps: usize,
        answer: Answer,
    },
    Reclaim {
        volume: usize,
        steps: usize,
        answer: Answer,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let answer = prop_oneof![
        4 => Just(Answer::Prompt), 1 => Just(Answer::Lost), 1 => Just(Answer::Late), 1 => Just(Answer::Twice),
        1 => Just(Answer::Never), 1 => Just(Answer::Refused),
    ];
    prop_oneof![
        3 => (0..3_usize).prop_map(Event::CreateClaim),
        2 => (0..3_usize).prop_map(Event::DeleteClaim),
        1 => (0..3_usize, any::<bool>()).prop_map(|(claim, others)| Event::Forge(claim, others)),
        2 => Just(Event::Bind),
        1 => Just(Event::EditClass),
        1 => Just(Event::DeleteClass),
        1 => Just(Event::SetSecret(Secret::Missing)),
        1 => Just(Event::SetSecret(Secret::Forbidden)),
        1 => Just(Event::SetSecret(Secret::Readable)),
        1 => (0..3_usize).prop_map(Event::Write),
        1 => Just(Event::Wait),
        10 => (0..3_usize, 0..4_usize, 0..8_usize, answer.clone())
            .prop_map(|(claim, age, steps, answer)| Event::Provision { claim, age, steps, answer }),
        4 => (0..3_usize, 0..5_usize, answer)
            .prop_map(|(volume, steps, answer)| Event::Reclaim { volume, steps, answer }),
    ]
}

fn name(index: usize) -> String {
    format!("claim-{index}")
}

impl Cluster {
    fn happen(&mut self, event: &Event, history: &[Self], accounts: &mut HashMap<String, BucketAccount>) {
        match *event {
            Event::CreateClaim(index) => {
                let version = self.next();
                let claim = SimClaim {
                    uid: format!("uid-{version}"),
                    version,
                    started: None,
                    has_finalizer: false,
                    deleted_at: None,
                    bound: false,
                };
                self.claims.entry(name(index)).or_insert(claim);
            }
            Event::DeleteClaim(index) => {
                let (version, now) = (self.next(), self.now);
                if let Some(claim) = self.claims.get_mut(&name(index)) {
                    (claim.deleted_at, claim.version) = (Some(claim.deleted_at.unwrap_or(now)), version);
                }
                self.collect();
            }
            Event::Forge(index, others) => {
                let version = self.next();
                let bucket = match self.volumes.values().next() {
                    Some(volume) if others => volume.handle.clone(),
                    _ => FOREIGN.to_owned(),
                };
                // Not on a claim whose bucket is started: its author would only hide a bucket from themselves.
                if let Some(claim) = self.claims.get_mut(&name(index)).filter(|claim| !claim.has_finalizer) {
                    (claim.has_finalizer, claim.started, claim.version) = (true, Some(bucket), version);
                }
            }
            Event::Bind => self.bind(),
            Event::EditClass => {
                self.edits += 1;
                self.class = Some(self.edits);
            }
            Event::DeleteClass => self.class = None,
            Event::SetSecret(secret) => self.secret = secret,
            Event::Write(index) => {
                let mut ours = self.buckets.iter_mut().filter(|(name, _)| *name != FOREIGN);
                if let Some((_, bucket)) = ours.nth(index) {
                    bucket.has_objects = true;
                }
            }
            Event::Wait => self.now += SignedDuration::from_mins(11),
            Event::Provision { claim, age, steps, answer } => {
                let remembered = &history[history.len() - 1 - age.min(history.len() - 1)];
                if let Some(cached) = remembered.claims.get(&name(claim)) {
                    self.provision(cached.object(&name(claim)), accounts, steps, answer);
                }
                // Killed.
                if steps < 5 {
                    accounts.clear();
                }
            }
            Event::Reclaim { volume, steps, answer } => {
                if let Some(name) = self.volumes.keys().nth(volume).cloned() {
                    self.reclaim(&name, steps, answer);
                }
            }
        }
        self.check();
    }

    /// All is well again: everything is done and nothing is left to do.
    fn settle(&mut self) {
        (self.secret, self.class) = (Secret::Readable, Some(self.class.unwrap_or(self.edits)));
        let mut accounts = HashMap::new();
        for _ in 0..10 {
            for (name, claim) in self.claims.clone() {
                self.provision(claim.object(&name), &mut accounts, usize::MAX, Answer::Prompt);
            }
            self.bind();
            for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
                self.reclaim(&name, usize::MAX, Answer::Prompt);
            }
        }
        self.check();
        let mut refused = 0;
        for (name, claim) in &self.claims {
            // After a crash nothing says with which credentials a bucket was started, if the class names others now.
            let is_refused = claim.started.as_ref().is_some_and(|bucket| !self.is_owned_by_class(bucket));
            let is_done = claim.bound && claim.deleted_at.is_none() && !claim.has_finalizer;
            assert!(is_done || is_refused, "{name} is not provisioned: {self:#?}");
            refused += usize::from(is_refused);
        }
        for volume in self.volumes.values() {
            assert!(!volume.released, "a released volume is left: {self:#?}");
        }
        let bound = self.claims.values().filter(|claim| claim.bound && claim.deleted_at.is_none()).count();
        // A refused claim may have a volume from before the class was edited; it stays unbound while its claim does.
        assert!((bound..=bound + refused).contains(&self.volumes.len()), "{self:#?}");
    }
}

/// The cluster after these events.
fn after(events: &[Event]) -> Cluster {
    let (mut cluster, mut accounts) = (Cluster::new(), HashMap::new());
    let mut history = vec![cluster.clone()];
    for event in events {
        cluster.happen(event, &history, &mut accounts);
        history.push(cluster.clone());
    }
    cluster
}

fn run(events: &[Event]) {
    after(events).settle();
}

fn provision(steps: usize, answer: Answer) -> Event {
    Event::Provision { claim: 0, age: 0, steps, answer }
}

/// The volume of the class's old parameters was not bound yet when a second bucket was created, and the process was killed.
#[test]
fn a_second_bucket_of_an_edited_class_is_deleted_after_a_crash() {
    let steps = [5, 3].map(|steps| provision(steps, Answer::Prompt));
    let [first, second] = steps;
    run(&[Event::CreateClaim(0), first, Event::EditClass, second, Event::Bind]);
}

/// The second bucket cannot be deleted with the credentials of a class that was edited once more: its claim stays, and with it
/// the volume of the first bucket.
#[test]
fn a_volume_waits_for_a_claim_whose_second_bucket_is_refused() {
    let [first, second] = [5, 3].map(|steps| provision(steps, Answer::Prompt));
    run(&[Event::CreateClaim(0), first, Event::EditClass, second, Event::DeleteClaim(0), Event::EditClass]);
}

/// The Role with which the controller reads the Secret is deleted with the namespace, which waits for its claims.
#[test]
fn a_deleted_claim_does_not_wait_for_ever_for_a_secret_that_may_not_be_read() {
    let in_doubt = provision(9, Answer::Lost);
    let forbidden = Event::SetSecret(Secret::Forbidden);
    let cleanup = provision(9, Answer::Prompt);
    let mut events = vec![
        Event::EditClass,
        Event::CreateClaim(0),
        in_doubt,
        forbidden,
        Event::DeleteClaim(0),
        cleanup.clone(),
    ];
    let waiting = after(&events);
    assert!(waiting.claims[&name(0)].has_finalizer && waiting.notes.is_empty(), "{waiting:#?}");
    events.extend([Event::Wait, cleanup]);
    let over = after(&events);
    assert!(over.claims.is_empty() && over.notes.len() == 1, "{over:#?}");
}

#[test]
fn a_released_volume_does_not_wait_for_ever_for_a_secret_that_may_not_be_read() {
    let reclaim = || Event::Reclaim { volume: 0, steps: 9, answer: Answer::Prompt };
    let (bound, forbidden) = (provision(9, Answer::Prompt), Event::SetSecret(Secret::Forbidden));
    let mut events =
        vec![Event::EditClass, Event::CreateClaim(0), bound, Event::Bind, Event::DeleteClaim(0), forbidden];
    events.push(reclaim());
    let waiting = after(&events);
    assert!(waiting.volumes.len() == 1 && waiting.notes.is_empty(), "{waiting:#?}");
    events.extend([Event::Wait, reclaim()]);
    let over = after(&events);
    assert!(over.volumes.is_empty() && over.notes.len() == 1, "{over:#?}");
}

/// A cached claim with the finalizer was provisioned, bound, deleted and reclaimed since.
#[test]
fn an_outdated_claim_is_not_resumed() {
    let stale = Event::Provision { claim: 0, age: 5, steps: 2, answer: Answer::Prompt };
    run(&[
        Event::CreateClaim(0),
        provision(3, Answer::Prompt),
        provision(9, Answer::Prompt),
        Event::Bind,
        Event::DeleteClaim(0),
        Event::Reclaim { volume: 0, steps: 9, answer: Answer::Prompt },
        stale,
    ]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_history_loses_or_leaks_a_bucket(events in proptest::collection::vec(event(), 1..50)) {
        run(&events);
    }
}
