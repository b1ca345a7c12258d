//! File semantics that depend on programs, node service and mount process running in separate containers.
//! `docs/semantics.md` lists these tests as well.

use crate::story::Story;

/// The kernel reports process ids in the PID namespace of the node's container, which contains no process of a
/// workload. All of them look the same to the mount process, so it cannot tell the last close from the others.
#[tokio::test]
async fn several_programs_of_a_pod_write_one_file() {
    let story = Story::begin("several-writers").await;
    let script = "set -e; \
        { echo one; date > /dev/null; ls / > /dev/null; echo two; uname > /dev/null; echo three; } > /data/group; \
        sh -c 'i=0; while [ $i -lt 50 ]; do ls -d /; i=$((i+1)); done' > /data/fifty 2>&1; \
        exec 3> /data/kept; echo a >&3; echo b >&3; exec 3>&-; \
        { echo a; echo b; } | tee /data/tee > /dev/null; \
        echo all written; sleep 3600";
    story.here.run("writer", story.workload(script)).await;
    story.says("writer", "all written").await;
    let written = |key: &str| String::from_utf8(story.server.get(story.name, key).unwrap()).unwrap();
    assert_eq!(written("group"), "one\ntwo\nthree\n");
    assert_eq!(written("fifty"), "/\n".repeat(50));
    assert_eq!(written("kept"), "a\nb\n");
    assert_eq!(written("tee"), "a\nb\n");
    story.here.delete("writer").await;
    story.leaves_nothing().await;
}
