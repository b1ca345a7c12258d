use super::*;

fn left(spools: &Spools) -> u64 {
    spools.budget.load(Ordering::Relaxed)
}

fn content(spool: &Spool) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let piece = spool.read(all.len() as u64, PIECE).unwrap();
        if piece.is_empty() {
            return all;
        }
        all.extend(piece);
    }
}

#[test]
fn what_was_written_is_kept_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for folder in [None, Some(folder.path().to_owned())] {
        let spools = Spools::new(folder, PER_FILE);
        let mut spool = Spool::new(Arc::clone(&spools), 7);
        assert!(content(&spool).is_empty());
        let mut expected = Vec::new();
        for (number, size) in (0_u8..).zip([1, 10, PIECE - 11, 1, PIECE, 3 * PIECE, 5]) {
            assert!(spool.append(&vec![number; size]));
            expected.extend(vec![number; size]);
        }
        assert_eq!(content(&spool), expected);
        assert_eq!(left(&spools), PER_FILE - expected.len() as u64);
        drop(spool);
        assert_eq!(left(&spools), PER_FILE);
    }
}

#[test]
fn a_successor_has_what_was_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool-7");
    let spools = || Spools::new(Some(folder.path().to_owned()), PER_FILE);
    let mut spool = Spool::new(spools(), 7);
    assert!(spool.append(b"abc"));
    // Without the destructor, as a process dies.
    std::mem::forget(spool);
    let (now, mut inherited) = (spools(), Spool::inherit(spools(), 7).unwrap());
    assert_eq!((content(&inherited), inherited.length()), (b"abc".to_vec(), 3));
    assert!(inherited.append(b"x"));
    assert_eq!(content(&inherited), b"abcx");
    drop(inherited);
    assert!(!path.exists() && left(&now) == PER_FILE);
    let nothing = Spool::inherit(now, 8).unwrap();
    assert!(nothing.is_kept() && nothing.length() == 0);
}

/// It must not be taken for a file that nothing was written to.
#[test]
fn what_cannot_be_opened_is_not_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("spool-7")).unwrap();
    let spools = Spools::new(Some(folder.path().to_owned()), PER_FILE);
    Spool::inherit(spools, 7).unwrap_err();
}

/// As after a move to a pod with a smaller memory limit.
#[test]
fn what_is_inherited_does_not_enlarge_a_smaller_budget() {
    let folder = tempfile::tempdir().unwrap();
    let spools = |bytes| Spools::new(Some(folder.path().to_owned()), bytes);
    let mut spool = Spool::new(spools(10), 7);
    assert!(spool.append(&[0; 10]));
    std::mem::forget(spool);
    let smaller = spools(4);
    let inherited = Spool::inherit(Arc::clone(&smaller), 7).unwrap();
    assert_eq!((inherited.length(), left(&smaller)), (10, 0));
    drop(inherited);
    assert_eq!(left(&smaller), 4);
}

#[test]
fn a_file_that_is_too_large_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let spools = Spools::new(Some(folder.path().to_owned()), PER_FILE * 2);
    let mut spool = Spool::new(Arc::clone(&spools), 7);
    assert!(spool.append(&vec![0; usize::try_from(PER_FILE).unwrap()]));
    assert!(!spool.append(&[0]));
    assert!(folder.path().join("spool-7").exists(), "the journal has to know before it goes");
    spool.give_up();
    assert!(!spool.is_kept() && !folder.path().join("spool-7").exists());
    assert_eq!(left(&spools), PER_FILE * 2);
    assert!(!spool.append(&[0]), "its beginning is gone");
    drop(spool);
    assert_eq!(left(&spools), PER_FILE * 2, "given back once");
}

#[test]
fn what_is_left_of_closed_files_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let spools = Spools::new(Some(folder.path().to_owned()), PER_FILE);
    for handle in [7, 8] {
        let mut spool = Spool::new(Arc::clone(&spools), handle);
        assert!(spool.append(b"abc"));
        std::mem::forget(spool);
    }
    fs::write(folder.path().join("journal"), "").unwrap();
    spools.keep_only(&[8]);
    let left = |name: &str| folder.path().join(name).exists();
    assert!(!left("spool-7") && left("spool-8") && left("journal"));
}

#[test]
fn all_files_share_a_budget() {
    let spools = Spools::new(None, 10);
    let (mut first, mut second) = (Spool::new(Arc::clone(&spools), 1), Spool::new(Arc::clone(&spools), 2));
    assert!(first.append(&[0; 6]) && !second.append(&[0; 6]));
    drop((first, second));
    assert_eq!(left(&spools), 10);
}
