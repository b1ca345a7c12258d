//! A workload that writes and reads all the time, and must not notice what happens to the driver.

use crate::story::Story;

/// Writes and reads a file in a loop, and logs every failure.
pub const BEAT: &str = "i=0; while true; do i=$((i+1)); file=/data/$(hostname)-$i; \
    if echo $i > $file && [ \"$(cat $file)\" = $i ]; then echo beat; else echo FAILED $i; fi; sleep 0.2; done";

/// A new workload is served, and the first one still is.
pub async fn serves_another(story: &Story, name: &str) {
    story.says_again("workload", "beat").await;
    story.here.run(name, story.workload(BEAT)).await;
    story.says(name, "beat").await;
    story.says_again("workload", "beat").await;
}

/// None of the workloads saw an error, and they leave nothing behind.
pub async fn end_without_errors(story: Story, workloads: &[&str]) {
    delete_without_errors(&story, workloads).await;
    story.leaves_nothing().await;
}

pub async fn delete_without_errors(story: &Story, workloads: &[&str]) {
    for workload in workloads {
        story.says_again(workload, "beat").await;
        assert!(!story.log(workload).await.contains("FAILED"), "{workload}");
        assert_eq!(story.container(workload).await.restart_count, 0, "{workload}");
    }
    for workload in workloads {
        story.here.delete(workload).await;
    }
}
