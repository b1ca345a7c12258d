//! What happens to data where it matters that programs, node and mount process are in containers of their own.
//! `docs/semantics.md` lists these tests, too.

use crate::story::Story;

/// The kernel names processes to the mount as the node's container sees them, which sees none of a workload's: all are the same
/// to it, and the first that closes the file after a write completes it.
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
    assert_eq!(written("direct"), "one\n", "and it is told, not lost");
    assert!(written("piped").starts_with("one\n") && written("piped").ends_with("two\n"));
    story.here.delete("writer").await;
    story.leaves_nothing().await;
}
