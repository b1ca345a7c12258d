use super::*;

const EIO: Outcome = Outcome::Failed(5);

fn objects(content: &str) -> Objects {
    [("f".to_owned(), content.into())].into()
}

/// The verdict about the last of these steps.
fn verdict(before: Objects, steps: &[(Step, Outcome, Objects)]) -> Verdict {
    let mut folder = Folder::new(before);
    let (last, earlier) = steps.split_last().unwrap();
    for (step, outcome, after) in earlier {
        folder.step(step, outcome, after).unwrap();
    }
    folder.step(&last.0, &last.1, &last.2)
}

fn open() -> Step {
    Step::Open { actor: 0, file: 1, name: "f".into(), write: true }
}

fn write(content: &str) -> Step {
    Step::Write { file: 1, content: content.into() }
}

const CLOSE: Step = Step::Close { actor: 0, file: 1 };
const DUPLICATE: Step = Step::Duplicate { actor: 0, file: 1 };

#[test]
fn what_was_acknowledged_must_be_in_the_bucket() {
    let none = Objects::new;
    let begun = [(open(), Outcome::Done, none()), (write("a"), Outcome::Done, none())];
    let closed = |outcome, after| verdict(none(), &[&begun[..], &[(CLOSE, outcome, after)]].concat());
    closed(Outcome::Done, objects("a")).unwrap();
    closed(Outcome::Done, none()).unwrap_err();
    closed(Outcome::Done, objects("b")).unwrap_err();
    closed(EIO, none()).unwrap_err();
}

#[test]
fn a_write_after_a_close_continues_the_file_unless_it_was_replaced() {
    let theirs = Step::PutElsewhere { name: "f".into(), content: "theirs".into() };
    let begun = [
        (open(), Outcome::Done, Objects::new()),
        (DUPLICATE, Outcome::Done, Objects::new()),
        (write("a"), Outcome::Done, Objects::new()),
        (CLOSE, Outcome::Done, objects("a")),
    ];
    let undisturbed =
        |outcome| verdict(Objects::new(), &[&begun[..], &[(write("b"), outcome, objects("a"))]].concat());
    undisturbed(Outcome::Done).unwrap();
    undisturbed(EIO).unwrap_err();
    let disturbed =
        [(theirs, Outcome::Done, objects("theirs")), (write("b"), Outcome::Done, objects("theirs"))];
    let closed = |outcome, after| {
        verdict(Objects::new(), &[&begun[..], &disturbed, &[(CLOSE, outcome, after)]].concat())
    };
    closed(EIO, objects("theirs")).unwrap();
    closed(Outcome::Done, objects("ab")).unwrap_err();
    closed(EIO, objects("ab")).unwrap_err();
    closed(Outcome::Done, objects("theirs")).unwrap_err();
}

#[test]
fn the_first_close_does_not_empty_what_a_file_replaces() {
    let begun = [(open(), Outcome::Done, objects("old")), (DUPLICATE, Outcome::Done, objects("old"))];
    let first = |after| verdict(objects("old"), &[&begun[..], &[(CLOSE, Outcome::Done, after)]].concat());
    first(objects("old")).unwrap();
    first(objects("")).unwrap_err();
    let closed = (CLOSE, Outcome::Done, objects("old"));
    let last = |after| {
        verdict(objects("old"), &[&begun[..], &[closed.clone(), (CLOSE, Outcome::Done, after)]].concat())
    };
    last(objects("")).unwrap();
    last(objects("old")).unwrap_err();
}

/// A program that continues or opens the file may have completed the upload of one that waited, or not.
#[test]
fn a_file_that_waited_while_others_used_it_is_emptied_before_or_at_its_close() {
    let of = |step: Step, after: &str| (step, Outcome::Done, objects(after));
    let second = Step::Open { actor: 0, file: 2, name: "f".into(), write: true };
    let steps = |last: (Step, Outcome, Objects)| {
        vec![
            of(open(), "old"),
            of(DUPLICATE, "old"),
            of(CLOSE, "old"),
            of(second.clone(), ""),
            of(Step::Duplicate { actor: 0, file: 2 }, ""),
            of(Step::Close { actor: 0, file: 2 }, ""),
            of(write("new"), ""),
            of(Step::Sync { file: 1 }, "new"),
            last,
        ]
    };
    let close = Step::Close { actor: 0, file: 2 };
    verdict(objects("old"), &steps(of(close.clone(), "new"))).unwrap();
    verdict(objects("old"), &steps(of(close.clone(), ""))).unwrap();
    verdict(objects("old"), &steps(of(close, "old"))).unwrap_err();
}

/// Also if another client has interfered with files that are open.
#[test]
fn a_file_that_no_program_is_about_to_publish_can_be_read() {
    let theirs = Step::PutElsewhere { name: "f".into(), content: "theirs".into() };
    let published = [
        (open(), Outcome::Done, Objects::new()),
        (DUPLICATE, Outcome::Done, Objects::new()),
        (write("a"), Outcome::Done, Objects::new()),
        (CLOSE, Outcome::Done, objects("a")),
        (theirs, Outcome::Done, objects("theirs")),
    ];
    let read = |steps: &[(Step, Outcome, Objects)], outcome| {
        let read = (Step::Read { name: "f".into() }, outcome, objects("theirs"));
        verdict(Objects::new(), &[&published[..], steps, &[read]].concat())
    };
    read(&[], Outcome::Content("theirs".into())).unwrap();
    read(&[], Outcome::Failed(Errno::STALE.raw_os_error())).unwrap_err();
    let written = (write("b"), Outcome::Done, objects("theirs"));
    read(&[written], Outcome::Failed(Errno::STALE.raw_os_error())).unwrap();
}

#[test]
fn a_reader_gets_what_was_there_or_an_error_after_it_has_changed() {
    let open = Step::Open { actor: 0, file: 1, name: "f".into(), write: false };
    let begun = [(open, Outcome::Done, objects("old"))];
    let read = |outcome: Outcome| {
        verdict(
            objects("old"),
            &[&begun[..], &[(Step::ReadOpen { file: 1 }, outcome, objects("old"))]].concat(),
        )
    };
    read(Outcome::Content("old".into())).unwrap();
    read(Outcome::Content("olx".into())).unwrap_err();
    read(EIO).unwrap_err();
    let change = (Step::DeleteElsewhere { name: "f".into() }, Outcome::Done, Objects::new());
    let failed = (Step::ReadOpen { file: 1 }, EIO, Objects::new());
    verdict(objects("old"), &[&begun[..], &[change, failed]].concat()).unwrap();
}

#[test]
fn steps_about_different_names_are_judged_together() {
    let open = |actor, file, name: &str| (actor, Step::Open { actor, file, name: name.into(), write: true });
    let write = |file, content: &str| Step::Write { file, content: content.into() };
    let close = |actor, file| (actor, Step::Close { actor, file });
    let mut folder = Folder::new(Objects::new());
    let begun = [open(0, 1, "f"), open(1, 2, "g")];
    assert!(folder.are_independent(&begun[0], &begun[1]));
    for other in [open(1, 3, "f"), open(0, 3, "g"), (1, Step::List)] {
        assert!(!folder.are_independent(&begun[0], &other), "{other:?}");
    }
    let done = [Outcome::Done, Outcome::Done];
    folder.steps(&begun, &done, &Objects::new()).unwrap();
    folder.steps(&[(0, write(1, "a")), (1, write(2, "b"))], &done, &Objects::new()).unwrap();
    let both: Objects = [("f".to_owned(), b"a".to_vec()), ("g".to_owned(), b"b".to_vec())].into();
    for (after, is_right) in [(both, true), (objects("a"), false), (Objects::new(), false)] {
        let judged = folder.clone().steps(&[close(0, 1), close(1, 2)], &done, &after);
        assert_eq!(judged.is_ok(), is_right, "{after:?}: {judged:?}");
    }
}
