use super::*;
use crate::journal::{Begin, Open};

fn entry(library: u64, etag: &str) -> Entry {
    let version = Version::of((!etag.is_empty()).then_some(etag));
    Entry { library, is_directory: false, version, is_local: false }
}

fn folder(library: u64) -> Entry {
    Entry { is_directory: true, ..entry(library, "") }
}

/// Mount processes, one after the other.
struct Life(tempfile::TempDir);

impl Life {
    fn new() -> (Self, Numbers) {
        let life = Self(tempfile::tempdir().unwrap());
        let (journal, _) = Journal::open(life.0.path()).unwrap();
        journal.begin(Begin::default()).unwrap();
        (life, Numbers::new(Arc::new(journal), None))
    }

    fn successor(&self) -> Numbers {
        let (journal, mut known) = Journal::open(self.0.path()).unwrap();
        Numbers::new(Arc::new(journal), known.as_mut())
    }
}

fn name_of(meaning: Meaning) -> (u64, String) {
    match meaning {
        Meaning::Named { parent, node } => (parent, node.name),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_process_uses_the_numbers_of_the_library() {
    let (_life, numbers) = Life::new();
    assert_eq!(numbers.record_lookup(ROOT, "a", &entry(2, "one")), 2);
    assert_eq!(numbers.number(ROOT, "b", &entry(3, "one")), 3);
    assert_eq!(numbers.meaning(2), Meaning::Known(2));
    assert_eq!(numbers.forget(2, 1), Some((2, 1)));
    assert_eq!(numbers.forget(ROOT, 1), None);
}

#[test]
fn a_successor_finds_by_name_what_the_kernel_knows_by_number() {
    let (life, numbers) = Life::new();
    numbers.record_lookup(ROOT, "folder", &folder(2));
    numbers.record_lookup(2, "a", &entry(3, "one"));
    numbers.record_lookup(2, "a", &entry(3, "one"));
    numbers.record_lookup(ROOT, "forgotten", &entry(4, "one"));
    numbers.forget(4, 1);
    numbers.commit();
    let numbers = life.successor();
    assert_eq!(name_of(numbers.meaning(3)), (2, "a".into()));
    assert_eq!(name_of(numbers.meaning(2)), (ROOT, "folder".into()));
    assert_eq!(numbers.meaning(4), Meaning::Stale);
    assert_eq!(numbers.meaning(ROOT), Meaning::Known(ROOT));
    assert!(numbers.find(2, &folder(9)) && numbers.find(3, &entry(2, "one")));
    assert_eq!((numbers.meaning(2), numbers.meaning(3)), (Meaning::Known(9), Meaning::Known(2)));
    assert_eq!(numbers.record_lookup(2, "a", &entry(2, "one")), 3, "the kernel keeps its number");
    assert_eq!(numbers.of_library(9), 2);
    assert_eq!(numbers.record_lookup(ROOT, "new", &entry(5, "one")), 4 + 5, "above all that were used");
    assert_eq!(numbers.meaning(9), Meaning::Known(5));
    assert_eq!(numbers.forget(3, 2), None, "the kernel has looked it up three times");
    assert_eq!(numbers.forget(3, 1), Some((2, 2)), "the library was asked twice");
    assert_eq!(numbers.meaning(3), Meaning::Stale);
}

#[test]
fn another_content_gets_another_number() {
    let (life, numbers) = Life::new();
    numbers.record_lookup(ROOT, "a", &entry(2, "one"));
    numbers.record_lookup(ROOT, "b", &entry(3, "one"));
    numbers.record_lookup(ROOT, "c", &entry(4, "one"));
    numbers.record_lookup(ROOT, "d", &folder(5));
    let open = Open { access: Access::Write, ..Open::new(4, 1, 0, 8) };
    numbers.journal.record(&Record::Opened(1, open));
    let numbers = life.successor();
    assert!(!numbers.find(2, &entry(2, "two")));
    assert_eq!(numbers.meaning(2), Meaning::Stale);
    assert_eq!(numbers.record_lookup(ROOT, "a", &entry(2, "two")), 5 + 2);
    assert_eq!(numbers.record_lookup(ROOT, "b", &entry(3, "two")), 5 + 3);
    assert_eq!(numbers.meaning(3), Meaning::Stale);
    assert!(numbers.find(4, &entry(4, "two")), "a writer does not need the old content");
    assert_eq!(numbers.record_lookup(ROOT, "d", &entry(6, "one")), 5 + 6, "a folder has become a file");
    numbers.commit();
    assert_eq!(life.successor().meaning(2), Meaning::Stale, "also for the next one");
}

#[test]
fn what_was_created_and_not_uploaded_is_made_again() {
    let (life, numbers) = Life::new();
    let local = Entry { is_local: true, ..entry(2, "") };
    numbers.record_lookup(ROOT, "new", &local);
    numbers.record_lookup(ROOT, "done", &Entry { library: 3, ..local });
    numbers.uploaded(3, Version::of(Some("one")));
    numbers.record_lookup(ROOT, "failed", &Entry { library: 4, ..local });
    numbers.not_uploaded(4);
    let numbers = life.successor();
    assert_eq!(numbers.unknown_locals(ROOT, None), [2]);
    assert!(numbers.unknown_locals(ROOT, Some(OsStr::new("done"))).is_empty());
    let is_local = |name: &str| numbers.is_local(ROOT, OsStr::new(name));
    assert!(is_local("new") && !is_local("done") && !is_local("failed") && !is_local("of another client"));
    assert_eq!(numbers.meaning(4), Meaning::Stale);
    assert!(numbers.find(2, &entry(7, "")));
    assert!(numbers.unknown_locals(ROOT, None).is_empty());
    assert_eq!(numbers.lose(2), Some((7, 1)), "what stood for it is gone");
    assert_eq!(numbers.unknown_locals(ROOT, None), [2]);
}

#[test]
fn a_new_file_of_which_bytes_are_lost_does_not_come_back_empty() {
    let (life, numbers) = Life::new();
    let local = Entry { is_local: true, ..entry(2, "") };
    numbers.record_lookup(ROOT, "new", &local);
    let open = Open { access: Access::Write, ..Open::new(2, 1, 0, 8) };
    numbers.journal.record(&Record::Opened(1, open));
    let numbers = life.successor();
    assert_eq!(numbers.unknown_locals(ROOT, None), [2]);
    numbers.journal.record(&Record::Unspooled(1));
    let numbers = life.successor();
    let is_gone = |numbers: &Numbers| {
        numbers.unknown_locals(ROOT, None).is_empty() && numbers.meaning(2) == Meaning::Stale
    };
    assert!(is_gone(&numbers));
    numbers.journal.record(&Record::Closed(1));
    assert!(is_gone(&life.successor()), "also when its program has closed it");
}

/// Else they would come back after another client has removed what is in them.
#[test]
fn a_new_folder_is_in_the_bucket_with_the_first_file_in_it() {
    let (life, numbers) = Life::new();
    let local = |library: u64| Entry { is_local: true, ..folder(library) };
    numbers.record_lookup(ROOT, "outer", &local(2));
    numbers.record_lookup(2, "inner", &local(3));
    numbers.record_lookup(2, "empty", &local(4));
    numbers.record_lookup(3, "file", &Entry { is_local: true, ..entry(5, "") });
    numbers.commit();
    let next = life.successor();
    assert_eq!((next.unknown_locals(ROOT, None), next.unknown_locals(3, None)), (vec![2], vec![5]));
    next.uploaded(5, Version::of(Some("one")));
    for numbers in [next, life.successor()] {
        assert!(numbers.unknown_locals(ROOT, None).is_empty());
        assert_eq!(numbers.unknown_locals(2, None), [4]);
    }
}

#[test]
fn names_that_are_removed_or_moved_are_not_found_again() {
    let (life, numbers) = Life::new();
    numbers.record_lookup(ROOT, "a", &entry(2, "one"));
    numbers.record_lookup(ROOT, "b", &entry(3, "one"));
    numbers.removed(ROOT, "a");
    numbers.renamed(ROOT, "b", ROOT, "c");
    let numbers = life.successor();
    assert_eq!(numbers.meaning(2), Meaning::Stale);
    assert_eq!(name_of(numbers.meaning(3)), (ROOT, "c".into()));
    numbers.removed(ROOT, "c");
    assert_eq!(numbers.meaning(3), Meaning::Stale);
}

/// Else it would come back as an empty file that no program writes.
#[test]
fn a_new_file_that_cannot_be_uploaded_is_not_made_again() {
    let (life, numbers) = Life::new();
    numbers.record_lookup(ROOT, "lost", &Entry { is_local: true, ..entry(2, "") });
    numbers.record_lookup(ROOT, "published", &Entry { is_local: true, ..entry(3, "") });
    numbers.uploaded(3, Version::of(Some("one")));
    numbers.commit();
    let numbers = life.successor();
    assert_eq!(numbers.unknown_locals(ROOT, None), [2]);
    numbers.not_uploaded(2);
    numbers.not_uploaded(3);
    for numbers in [numbers, life.successor()] {
        assert!(numbers.unknown_locals(ROOT, None).is_empty());
        assert_eq!(numbers.meaning(2), Meaning::Stale);
        assert_eq!(name_of(numbers.meaning(3)), (ROOT, "published".into()));
    }
}

#[test]
fn a_file_that_the_library_knows_by_another_number_keeps_its_own() {
    let (life, numbers) = Life::new();
    numbers.record_lookup(ROOT, "a", &entry(2, "one"));
    numbers.record_lookup(ROOT, "a", &entry(2, "one"));
    assert_eq!(numbers.replace(2, 7), Some((2, 2)));
    assert_eq!((numbers.meaning(2), numbers.of_library(7)), (Meaning::Known(7), 2));
    assert_eq!(numbers.record_lookup(ROOT, "a", &entry(7, "two")), 2);
    assert_eq!(numbers.forget(2, 2), None, "the kernel has looked it up three times");
    assert_eq!(numbers.forget(2, 1), Some((7, 2)), "of the other number, twice");
    assert_eq!(numbers.meaning(2), Meaning::Known(2));
    numbers.record_lookup(ROOT, "b", &entry(3, "one"));
    numbers.commit();
    let numbers = life.successor();
    assert!(numbers.find(3, &entry(5, "one")));
    assert_eq!(numbers.replace(3, 6), Some((5, 1)), "also one of a predecessor");
    assert_eq!(numbers.forget(3, 1), Some((6, 1)));
    assert_eq!(numbers.replace(3, 6), None, "the kernel does not know it any more");
}

/// The library keeps its number of an object that is replaced by one with the same content.
#[test]
fn a_file_that_is_renamed_to_another_with_the_same_content_keeps_its_number() {
    let (life, numbers) = Life::new();
    assert_eq!(numbers.record_lookup(ROOT, "from", &entry(2, "same")), 2);
    assert_eq!(numbers.record_lookup(ROOT, "to", &entry(3, "same")), 3);
    assert_eq!(numbers.take_over(2, 3), Some((2, 1)));
    numbers.renamed(ROOT, "from", ROOT, "to");
    assert_eq!(numbers.record_lookup(ROOT, "to", &entry(3, "same")), 2);
    assert_eq!(numbers.forget(3, 1), Some((3, 1)), "the kernel has no name for it any more");
    assert_eq!(numbers.record_lookup(ROOT, "to", &entry(3, "same")), 2);
    numbers.commit();
    assert_eq!(name_of(life.successor().meaning(2)), (ROOT, "to".into()));
}

/// The kernel counts the size of a file by the number that a program writes it by, and would read by the other one what the file
/// was before.
#[test]
fn the_size_of_a_file_that_was_written_by_another_number_is_outdated() {
    let (_life, numbers) = Life::new();
    let is_outdated = |ino| numbers.is_outdated(ino, Version::of(Some("one")));
    numbers.record_lookup(ROOT, "a", &entry(2, "one"));
    numbers.record_lookup(ROOT, "a", &entry(7, "one"));
    assert_eq!(numbers.replace(2, 7), Some((2, 1)));
    assert!(!is_outdated(2) && !is_outdated(7), "nothing was written");
    for etag in ["two", "three"] {
        numbers.uploaded(2, Version::of(Some(etag)));
        assert!(is_outdated(7) && !is_outdated(2), "{etag}");
        assert_eq!(numbers.record_lookup(ROOT, "a", &entry(7, etag)), 7);
        assert!(!is_outdated(7), "the kernel has asked since");
    }
    numbers.uploaded(2, Version::of(Some("four")));
    numbers.uploaded(7, Version::of(Some("five")));
    assert!(!is_outdated(7), "the kernel has counted what it wrote itself");
    assert_eq!(numbers.forget(7, 3), Some((7, 3)));
    numbers.uploaded(2, Version::of(Some("six")));
    assert!(!is_outdated(7), "the kernel does not know it any more");
}
