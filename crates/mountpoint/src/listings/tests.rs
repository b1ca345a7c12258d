use super::*;

const KEPT: Duration = Duration::from_secs(1);

fn old() -> Instant {
    Instant::now().checked_sub(KEPT * 2).unwrap()
}

fn note(listings: &Listings, folder: u64, tokens: (Option<&str>, Option<&str>), names: &[&str]) {
    listings.state().note_names(folder, tokens, names.iter().copied(), old());
}

fn page(token: Option<&str>) -> Due {
    Due { folder: 1, token: token.map(str::to_owned) }
}

#[test]
fn a_page_is_asked_for_again_when_many_of_its_names_are_looked_up() {
    let listings = Listings::default();
    note(&listings, 1, (None, Some("next")), &["a", "m"]);
    note(&listings, 1, (Some("next"), None), &["n", "z"]);
    let due = |name| listings.due(1, name, KEPT, None);
    find(&listings, WORTH_A_PAGE - 1, "o");
    assert_eq!(due("o"), None, "it may be the last one");
    find(&listings, 1, "o");
    assert_eq!(due("b"), None, "on another page");
    assert_eq!(listings.due(2, "o", KEPT, None), None, "in another folder");
    assert_eq!(due("o"), Some(page(Some("next"))));
    find(&listings, 2 * WORTH_A_PAGE, "o");
    assert_eq!(due("o"), None, "it has just been asked for");
    note(&listings, 1, (Some("next"), None), &["n", "z"]);
    assert_eq!(due("o"), None, "and its answer counts from the beginning");
    assert_eq!(listings.state().pages.len(), 2);
    assert!(listings.due(1, "a", KEPT, Some(Instant::now())).is_some(), "a listing has said older things");
    assert_eq!(listings.due(1, "a", KEPT, Some(old())), None, "and others do not ask for it, too");
}

/// A page is kept for less than a second, and takes the server longer than a lookup.
#[test]
fn a_page_is_not_asked_for_again_when_its_names_are_looked_up_now_and_then() {
    let listings = Listings::default();
    note(&listings, 1, (None, None), &["a", "z"]);
    find(&listings, WORTH_A_PAGE - 1, "m");
    listings.state().pages[0].found.since = old();
    find(&listings, 1, "m");
    assert_eq!(listings.due(1, "m", KEPT, None), None);
    find(&listings, WORTH_A_PAGE, "m");
    assert_eq!(listings.due(1, "m", KEPT, None), Some(page(None)), "they are counted from the beginning");
}

#[test]
fn what_is_kept_for_long_is_asked_for_again_after_that() {
    let listings = Listings::default();
    note(&listings, 1, (None, None), &["a", "z"]);
    find(&listings, WORTH_A_PAGE, "m");
    assert_eq!(listings.due(1, "m", KEPT * 3, None), None);
    assert_eq!(listings.due(1, "m", KEPT, None), Some(page(None)));
}

/// Before it creates a file, a program looks its name up.
#[test]
fn a_page_is_not_asked_for_again_for_names_that_do_not_exist() {
    let listings = Listings::default();
    note(&listings, 1, (None, None), &["a", "z"]);
    for _ in 0..2 * WORTH_A_PAGE {
        assert_eq!(listings.due(1, "new", KEPT, None), None);
    }
}

#[test]
fn the_oldest_pages_are_forgotten() {
    let listings = Listings::default();
    for folder in 0..2 * PAGES as u64 {
        note(&listings, folder, (None, None), &["a"]);
    }
    assert_eq!(listings.state().pages.len(), PAGES);
    note(&listings, 7, (None, None), &[]);
    assert_eq!(listings.state().pages.len(), PAGES, "an empty page has no names");
}

fn find(listings: &Listings, names: usize, name: &str) {
    for _ in 0..names {
        listings.note_found(1, name, KEPT);
    }
}

#[test]
fn a_folder_in_which_many_files_are_found_is_listed_page_by_page() {
    let listings = Listings::default();
    let due = || listings.due(1, "f", KEPT, None);
    find(&listings, WORTH_A_PAGE - 1, "f");
    assert_eq!(due(), None, "it may be the last one");
    find(&listings, 1, "f");
    assert_eq!(listings.due(2, "f", KEPT, None), None, "in another folder");
    assert_eq!(due(), Some(page(None)));
    assert_eq!(due(), None, "others do not ask for it, too");
    note(&listings, 1, (None, Some("next")), &["a", "c"]);
    find(&listings, WORTH_A_PAGE, "f");
    assert_eq!(due(), Some(page(Some("next"))));
    note(&listings, 1, (Some("next"), None), &["d", "e"]);
    find(&listings, WORTH_A_PAGE, "f");
    assert_eq!(due(), None, "there are no more pages");
}

#[test]
fn a_folder_is_not_listed_for_files_that_are_found_now_and_then() {
    let listings = Listings::default();
    find(&listings, WORTH_A_PAGE, "f");
    listings.state().found.get_mut(&1).unwrap().since = old();
    assert_eq!(listings.due(1, "f", KEPT, None), None);
    find(&listings, 1, "f");
    assert_eq!(listings.state().found[&1].files, 1, "they are counted from the beginning");
}

#[test]
fn not_all_pages_of_a_huge_folder_are_listed() {
    let listings = Listings::default();
    for number in 0..PAGES_BY_NAME {
        find(&listings, WORTH_A_PAGE, "z");
        let due = listings.due(1, "z", KEPT, None).expect("another page");
        let (last, next) = (format!("n{number}"), format!("t{number}"));
        note(&listings, 1, (due.token.as_deref(), Some(&next)), &[&last]);
    }
    find(&listings, WORTH_A_PAGE, "z");
    assert_eq!(listings.due(1, "z", KEPT, None), None);
}

#[test]
fn what_is_learned_for_lookups_is_bounded() {
    let listings = Listings::default();
    listings.state().learned.insert(7, LEARNED - 1);
    find(&listings, WORTH_A_PAGE, "f");
    assert_eq!(listings.due(1, "f", KEPT, None), Some(page(None)));
    for _ in 0..2 {
        listings.state().note_learned(1, None, 1);
        note(&listings, 1, (None, Some("next")), &["a"]);
        assert_eq!(listings.state().learned[&1], 1, "a page counts once");
    }
    let next = || {
        find(&listings, WORTH_A_PAGE, "f");
        listings.due(1, "f", KEPT, None)
    };
    assert_eq!(next(), None);
    listings.forget(7);
    assert_eq!(next(), Some(page(Some("next"))), "the library has forgotten another folder");
    listings.forget(1);
    assert!(listings.state().pages.is_empty() && listings.state().learned.is_empty());
}
