//! File semantics that depend on programs, node service and mount process running in separate containers.
//! `docs/semantics.md` lists these tests as well.

use kube::api::LogParams;

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

/// Because all of them look the same, each `dd` publishes what was written so far when it ends. That is larger than what is kept
/// in memory, so the server copies it when the next program continues.
#[tokio::test]
async fn several_programs_of_a_pod_write_a_large_file() {
    let story = Story::begin("large-writers").await;
    let script = "{ dd if=/dev/zero bs=1M count=20; echo x; dd if=/dev/zero bs=1M count=3; } > /data/large; \
        echo all written; sleep 3600";
    story.here.run("writer", story.workload(script)).await;
    story.says("writer", "all written").await;
    let written = story.server.get(story.name, "large").unwrap();
    let expected = [&vec![0; 20 << 20][..], b"x\n", &vec![0; 3 << 20]].concat();
    assert_eq!(written.len(), expected.len());
    assert!(written == expected);
    let served_by = story.mountpoint_pods().await;
    let log = story.mountpoint_pods_api().logs(&served_by[0], &LogParams::default()).await.unwrap();
    assert!(!log.contains("reading back a large file"), "{log}");
    story.here.delete("writer").await;
    story.leaves_nothing().await;
}
