use super::*;

fn object(etag: &str) -> Published {
    Published { bucket: "bucket".into(), key: "key".into(), etag: etag.into() }
}

#[test]
fn an_upload_is_known_by_its_handle_until_it_ends() {
    let uploads = Uploads::default();
    uploads.begin(7, 1, "bucket", "key", true, Version::default());
    assert!(uploads.creates(7) && uploads.key(7).as_deref() == Some("key") && uploads.key(8).is_none());
    assert!(uploads.creates_object("key") && !uploads.creates_object("other"));
    assert!(uploads.writes_object("key") && !uploads.writes_object("other"));
    assert_eq!(uploads.published(7), None);
    uploads.has_bytes_of(7, 1, 30);
    assert!(!uploads.has_published(1, "one"));
    assert_eq!(uploads.publish(7, "one".into()), Some((1, 30)));
    assert!(uploads.has_published(1, "one"));
    assert!(!uploads.has_published(1, "other") && !uploads.has_published(2, "one"));
    assert!(!uploads.creates_object("key"), "it exists now");
    assert_eq!(uploads.published(7), Some(object("one")));
    uploads.end(7);
    assert!(uploads.key(7).is_none() && uploads.published(7).is_none());
}

/// An earlier one that has failed may not be closed yet.
#[test]
fn an_upload_belongs_to_the_newest_writer_of_its_key() {
    let uploads = Uploads::default();
    assert_eq!(uploads.writer("key"), None);
    for (handle, key) in [(7, "key"), (8, "key"), (9, "other")] {
        uploads.begin(handle, handle, "bucket", key, true, Version::default());
        assert_eq!(uploads.file(handle), None, "nothing is known to be written");
        uploads.has_bytes_of(handle, handle + 100, 30);
    }
    assert_eq!(uploads.writer("key"), Some(8));
    assert_eq!(uploads.file(8), Some((108, 30)));
}

#[test]
fn a_condition_is_for_one_upload() {
    let uploads = Uploads::default();
    uploads.begin_continuation(7, 1, &object("one"), 0, false);
    assert_eq!(uploads.condition("other"), None);
    assert_eq!(uploads.condition("key"), Some(Condition { etag: "one".into(), copied: None }));
    assert_eq!(uploads.condition("key"), None);
    uploads.begin_continuation(8, 1, &object("one"), 0, false);
    uploads.begin(9, 2, "bucket", "key", false, Version::default());
    assert_eq!(uploads.condition("key"), None, "another writer has begun since");
}

/// The library is given an error then, and says that it has failed.
#[test]
fn what_the_server_has_completed_is_known_by_the_handle_that_wrote_it() {
    let uploads = Uploads::default();
    uploads.begin(6, 1, "bucket", "key", true, Version::default());
    uploads.publish(6, "one".into());
    uploads.begin_continuation(7, 1, &object("one"), 10, true);
    uploads.continued("key", "two".into());
    assert_eq!((uploads.became(6), uploads.became(7)), (None, Some("two".into())));
}

#[test]
fn bytes_that_are_written_again_are_counted_once() {
    let uploads = Uploads::default();
    assert_eq!(uploads.added(1, 10), 10);
    uploads.begin_continuation(7, 1, &object("one"), 10, false);
    assert_eq!((uploads.added(1, 6), uploads.added(1, 4), uploads.added(1, 1)), (0, 0, 1));
    uploads.begin_continuation(7, 1, &object("one"), 10, false);
    assert_eq!((uploads.added(1, 12), uploads.added(1, 1)), (2, 1), "more is repeated than was published");
    uploads.begin_continuation(7, 1, &object("one"), 10, false);
    uploads.end_replay(1);
    assert_eq!(uploads.added(1, 10), 10);
    uploads.begin_continuation(7, 1, &object("one"), 0, false);
    assert_eq!(uploads.added(1, 10), 10, "nothing was published but an empty file");
    uploads.begin_continuation(7, 1, &object("one"), 10, true);
    assert_eq!(uploads.added(1, 10), 10, "the server copies what was published");
    assert_eq!(uploads.condition("key").unwrap().copied, Some(10));
}

#[test]
fn a_key_is_renamed_until_a_file_is_published_there_again() {
    let uploads = Uploads::default();
    uploads.begin(7, 1, "bucket", "key", true, Version::default());
    uploads.publish(7, "one".into());
    uploads.rename("key");
    assert!(uploads.is_renamed("key") && !uploads.is_renamed("other"));
    uploads.begin(8, 2, "bucket", "key", true, Version::default());
    uploads.publish(8, "two".into());
    assert!(!uploads.is_renamed("key"));
    for number in 0..2 * MOST_RENAMED {
        uploads.rename(&number.to_string());
    }
    assert!(uploads.state().renamed.len() <= MOST_RENAMED);
}
