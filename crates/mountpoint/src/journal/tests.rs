use super::*;

fn node(parent: u64, name: &str) -> Node {
    Node {
        parent,
        name: name.into(),
        is_directory: false,
        version: Version::of(Some("one")),
        is_local: false,
        is_stale: false,
        lookups: 1,
    }
}

fn open(ino: u64, access: Access) -> Open {
    Open { access, ..Open::new(ino, 0, 0, 8) }
}

fn published(length: u64) -> PublishedObject {
    PublishedObject { bucket: "b".into(), key: "k".into(), etag: "e".into(), length }
}

fn completing(upload: &str) -> Record {
    let completion = Completion { upload: upload.into(), length: 7, ..Completion::default() };
    Record::Completing(1, Box::new(completion))
}

fn known(records: &[Record]) -> Known {
    let mut known = Known::default();
    records.iter().cloned().for_each(|record| known.apply(record));
    known
}

/// A bit of everything.
fn story() -> Vec<Record> {
    vec![
        Record::Begin(Begin { init: vec![1, 2], region: "us-east-1".into() }),
        Record::Inode(2, Node { is_directory: true, ..node(1, "folder") }),
        Record::Inode(3, node(2, "a")),
        Record::LookedUp(3),
        Record::Inode(4, Node { is_local: true, ..node(2, "b") }),
        Record::Inode(5, node(1, "gone")),
        Record::Inode(9, node(1, "forgotten")),
        Record::Removed(1, "gone".into()),
        Record::Opened(1, open(4, Access::Write)),
        Record::Unspooled(1),
        completing("/b/k?uploadId=1"),
        Record::Published(1, published(7)),
        Record::Uploaded(4, Version::of(Some("two"))),
        Record::Opened(2, open(2, Access::List)),
        Record::Listed(2, 0, vec![".".into(), "..".into(), "a".into()]),
        Record::Listed(2, 2, vec!["b".into()]),
        Record::Opened(7, open(3, Access::Read)),
        Record::Closed(7),
        Record::Idle(1),
        Record::Idle(2),
        Record::Busy(2),
        Record::Forgotten(9, 1),
        Record::Forgotten(3, 1),
        Record::Renamed(2, "a".into(), 1, "c".into()),
        Record::Retried(88),
        Record::Retried(88),
        Record::UploadBegun("/b/k?uploadId=1".into()),
        Record::UploadBegun("/b/k?uploadId=2".into()),
        Record::UploadEnded("/b/k?uploadId=1".into()),
        // Another client has replaced a file that is open.
        Record::Inode(11, node(1, "replaced")),
        Record::Inode(12, Node { is_local: true, ..node(1, "replaced") }),
        // Another one has emptied a folder that is a working directory, and filled it again.
        Record::Inode(13, Node { is_directory: true, ..node(1, "filled") }),
        Record::Inode(14, Node { is_directory: true, ..node(1, "filled") }),
    ]
}

#[test]
fn what_the_kernel_knows_follows_from_the_records() {
    let known = known(&story());
    assert_eq!(known.nodes.named(1, "c"), Some(3));
    assert_eq!(known.nodes.named(2, "a"), None);
    assert_eq!(known.nodes.get(3).unwrap().lookups, 1);
    assert!(known.nodes.get(5).unwrap().is_stale && known.nodes.named(1, "gone").is_none());
    assert!(known.nodes.get(9).is_none());
    let uploaded = known.nodes.get(4).unwrap();
    assert!(!uploaded.is_local && uploaded.version == Version::of(Some("two")));
    assert_eq!(known.handles[&1].published, Some(published(7)));
    assert!(!known.handles[&1].unspooled, "published since");
    assert_eq!(known.handles[&2].names, [".", "..", "b"], "the kernel asked again from offset 2");
    assert!(!known.handles.contains_key(&7));
    assert!(known.handles[&1].is_idle && !known.handles[&2].is_idle);
    assert_eq!((known.highest_inode, known.highest_handle), (14, 7), "numbers are not used twice");
    assert_eq!((known.nodes.named(1, "replaced"), known.nodes.named(1, "filled")), (Some(12), Some(14)));
    let is_stale = |ino: u64| known.nodes.get(ino).unwrap().is_stale;
    assert!(is_stale(11) && !is_stale(12) && !is_stale(13) && !is_stale(14));
    assert_eq!(known.retries[&88], 2);
    assert_eq!(known.uploads, ["/b/k?uploadId=2".to_owned()].into());
    assert_eq!(known.nodes.children(2).map(|(ino, _)| ino).collect::<Vec<_>>(), [4]);
}

/// What the library appends is in no spool, and opening the file again would empty it.
#[test]
fn a_file_that_is_appended_to_is_lost_with_its_process() {
    let opened = |access| vec![Record::Opened(1, open(2, access))];
    let is_lost = |records: &[Record]| known(records).handles[&1].is_lost();
    assert!(is_lost(&opened(Access::Append)) && !is_lost(&opened(Access::Write)));
    let published = [opened(Access::Append), vec![Record::Published(1, published(7))]].concat();
    assert!(is_lost(&published), "more may have been appended since");
}

#[test]
fn an_upload_that_is_being_completed_is_needed_until_a_program_hears_of_its_end() {
    let begun = [
        Record::Opened(1, open(2, Access::Write)),
        Record::UploadBegun("/b/k?uploadId=1".into()),
        Record::UploadBegun("/b/k?uploadId=2".into()),
    ];
    let after = |records: &[Record]| known(&[&begun[..], records].concat());
    let (first, both) = ("/b/k?uploadId=1".to_owned(), 2);
    let complete = [Record::Unspooled(1), completing("/b/k?uploadId=2")];
    assert_eq!(after(&complete).abandoned_uploads(), [first].into());
    let upload = |known: &Known| known.handles[&1].to_complete().map(|it| it.upload.clone());
    assert_eq!(upload(&after(&complete)).as_deref(), Some("/b/k?uploadId=2"));
    for end in [Record::Unspooled(1), Record::Published(1, published(7)), Record::Closed(1)] {
        let ended = after(&[&complete[..], &[end]].concat());
        assert_eq!(ended.abandoned_uploads().len(), both);
        assert!(ended.handles.values().all(|handle| handle.to_complete().is_none()));
    }
    let spooled = after(&complete[1..]);
    assert_eq!((upload(&spooled), spooled.abandoned_uploads().len()), (None, both), "it is uploaded again");
}

#[test]
fn a_rewritten_journal_says_the_same() {
    let story = story();
    for length in 0..=story.len() {
        let before = known(&story[..length]);
        let after = known(&before.records().collect::<Vec<_>>());
        assert_eq!(after, before);
    }
}

#[test]
fn a_successor_reads_what_was_recorded_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, nothing) = Journal::open(folder.path()).unwrap();
    assert_eq!(nothing, None);
    journal.record(&Record::LookedUp(2));
    assert!(!folder.path().join(JOURNAL).exists(), "nothing is recorded before the mount has begun");
    let story = story();
    let Record::Begin(begin) = &story[0] else { panic!() };
    journal.begin(begin.clone()).unwrap();
    story[1..10].iter().for_each(|record| journal.note(record));
    story[10..].iter().for_each(|record| journal.record(record));
    let (successor, found) = Journal::open(folder.path()).unwrap();
    assert_eq!(found, Some(known(&story)));
    successor.record(&Record::Closed(1));
    let (_, found) = Journal::open(folder.path()).unwrap();
    assert!(!found.unwrap().handles.contains_key(&1));
}

#[test]
fn a_torn_line_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(JOURNAL);
    fs::write(&path, "{\"N\":[2,{\"p\":1,\"n\":\"a\"}]}\n{\"L\":2}\n{\"F\":[2").unwrap();
    let known = Journal::open(folder.path()).unwrap().1.unwrap();
    assert_eq!(known.nodes.get(2).unwrap().lookups, 2);
    fs::write(&path, "{\"N\":[2\n{\"L\":2}\n").unwrap();
    assert!(Journal::open(folder.path()).is_err(), "a line in the middle was written as a whole");
}

/// Waits until it is not being rewritten.
fn is_written(journal: &Journal) {
    while journal.state().is_being_rewritten {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_long_journal_is_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path()).unwrap();
    journal.begin(Begin::default()).unwrap();
    journal.record(&Record::Inode(2, node(1, "a")));
    journal.record(&Record::Opened(1, open(2, Access::List)));
    let names = vec!["x".repeat(100_000)];
    let longest = (0..400).map(|_| {
        journal.note(&Record::LookedUp(2));
        journal.record(&Record::Listed(1, 0, names.clone()));
        is_written(&journal);
        fs::metadata(folder.path().join(JOURNAL)).unwrap().len()
    });
    assert!(longest.max().unwrap() <= REWRITE_AT);
    let known = Journal::open(folder.path()).unwrap().1.unwrap();
    assert_eq!(known.nodes.get(2).unwrap().lookups, 401);
    assert_eq!(known.handles[&1].names, names);
}

#[test]
fn a_process_that_leaves_keeps_no_record_that_no_longer_matters() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path()).unwrap();
    journal.begin(Begin::default()).unwrap();
    let story = story();
    story[1..].iter().for_each(|record| journal.record(record));
    let lines = || fs::read_to_string(folder.path().join(JOURNAL)).unwrap();
    assert!(lines().contains("{\"E\":"));
    journal.leave();
    assert!(!lines().contains("{\"E\":"));
    journal.record(&Record::LookedUp(3));
    let left = [&story[..], &[Record::Left, Record::LookedUp(3)]].concat();
    let known = Known { begin: Begin::default(), ..known(&left) };
    assert_eq!(Journal::open(folder.path()).unwrap().1, Some(known));
}

#[test]
fn a_journal_that_cannot_be_written_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path()).unwrap();
    journal.begin(Begin::default()).unwrap();
    journal.state().file = Some(File::open("/dev/null").unwrap());
    journal.record(&Record::LookedUp(2));
    assert!(!folder.path().join(JOURNAL).exists(), "a successor would miss something");
    journal.record(&Record::LookedUp(2));
}

/// As when there is no room for another file.
#[test]
fn a_journal_that_cannot_be_shortened_grows_on() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path()).unwrap();
    journal.begin(Begin::default()).unwrap();
    journal.record(&Record::Inode(2, node(1, "a")));
    fs::create_dir(folder.path().join(DRAFT)).unwrap();
    journal.state().rewrite_at = 0;
    journal.record(&Record::LookedUp(2));
    is_written(&journal);
    journal.record(&Record::LookedUp(2));
    let path = folder.path().join(JOURNAL);
    File::options().append(true).open(&path).unwrap().write_all(b"{\"L\":").unwrap();
    let (successor, found) = Journal::open(folder.path()).unwrap();
    assert_eq!(found.unwrap().nodes.get(2).unwrap().lookups, 3);
    successor.record(&Record::LookedUp(2));
    let (_, found) = Journal::open(folder.path()).unwrap();
    assert_eq!(found.unwrap().nodes.get(2).unwrap().lookups, 4);
}

#[test]
fn a_draft_that_cannot_be_completed_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path()).unwrap();
    journal.begin(Begin::default()).unwrap();
    fs::remove_file(folder.path().join(JOURNAL)).unwrap();
    // Nothing can be renamed to a folder.
    fs::create_dir(folder.path().join(JOURNAL)).unwrap();
    assert!(journal.rewrite(&mut journal.state(), &Known::default()).is_err());
    assert!(!folder.path().join(DRAFT).exists());
}
