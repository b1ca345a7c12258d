//! File semantics that depend on programs, node service and mount process running in separate containers.
//! `docs/semantics.md` lists these tests as well.

use crate::story::Story;

/// The kernel reports process ids in the PID namespace of the node's container, which contains no process of a
/// workload. All of them look the same to the mount process, so the first one that closes the file after a write
/// completes it.
#[tokio::test]
async fn a_file_that_several_programs_write_ends_with_the_first_of_them() {
    let story = Story::begin("several-writers").await;
    let several = "echo one; date > /dev/null; ls /; echo two";
    let script = format!(
        "{{ {several}; }} > /data/direct || echo direct failed; {{ {several}; }} | cat > /data/piped && echo piped; sleep 3600"
    );
    story.here.run("writer", story.workload(&script)).await;
    story.says("writer", "direct failed").await;
    story.says("writer", "piped").await;
    let written = |key: &str| String::from_utf8(story.server.get(story.name, key).unwrap()).unwrap();
    assert_eq!(written("direct"), "one\n", "the loss was reported to the writer");
    assert!(written("piped").starts_with("one\n") && written("piped").ends_with("two\n"));
    story.here.delete("writer").await;
    story.leaves_nothing().await;
}
