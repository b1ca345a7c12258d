//! The kill matrix: every part is killed and stopped while volumes are mounted, read, written, unmounted, provisioned and
//! deleted. Programs in pods check every byte they read and record every file whose close succeeded.

mod claims;
mod inject;
pub mod matrix;
mod scene;
pub mod selection;

use std::time::{Duration, Instant};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::DeleteParams;
use xtask::cluster::Node;
use xtask::witness::{self, Outcome};

use crate::{Seen, reached};
use matrix::Fault;
use scene::{Act, Scene, Stuck, now};

/// After the last workload has ended.
const CLEAN_WITHIN: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub struct Report {
    pub planned: usize,
    /// That hit something before the limit.
    pub faults: usize,
    pub acknowledged_bytes: usize,
    pub acknowledged_bytes_lost: usize,
    pub orphans: usize,
    pub stuck_workloads: usize,
    pub reader_errors_outside_documented: usize,
    pub writer_errors_outside_documented: usize,
    /// One line for each of the above that should not be.
    pub details: Vec<String>,
}

impl Report {
    fn say(&mut self, line: String) {
        eprintln!("{line}");
        self.details.push(line);
    }
}

/// Injects these faults on this node, until the limit. Stops at the first workload that is stuck, because a later fault would
/// hide the reason.
pub async fn run(node: Node, faults: Vec<Fault>, limit: Duration) -> Report {
    let scene = Scene::set(node).await;
    let mut report = Report { planned: faults.len(), ..Report::default() };
    let began = Instant::now();
    for fault in faults {
        if began.elapsed() > limit {
            break;
        }
        let at = (Instant::now(), now());
        let outcome = inject(&scene, fault).await;
        match outcome {
            Ok(true) => report.faults += 1,
            Ok(false) => eprintln!("{fault}: what it should hit is not there any more"),
            Err(ref stuck) => {
                report.faults += 1;
                report.stuck_workloads += 1;
                report.say(format!("{fault}: {stuck}"));
            }
        }
        judge(&scene, fault, at.1, &mut report);
        eprintln!("{:>4} {fault}: {:.0} s", report.faults, at.0.elapsed().as_secs_f64());
        if outcome.is_err() {
            break;
        }
    }
    finish(scene, &mut report).await;
    report
}

/// Whether there was something to hit.
async fn inject(scene: &Scene, fault: Fault) -> Result<bool, Stuck> {
    let act = scene.begin(fault.moment).await?;
    let begun = Instant::now();
    let target = scene.target(fault, &act).await;
    tokio::time::sleep(Duration::from_millis(fault.after_ms).saturating_sub(begun.elapsed())).await;
    let hit = match target {
        Some(target) => {
            let cluster = scene.story.here.cluster.clone();
            let failed = tokio::task::spawn_blocking(move || target.fail(&cluster, fault.how)).await;
            failed.unwrap().map_err(|error| format!("{error:#}"))?
        }
        None => false,
    };
    scene.api_answers().await?;
    recover(scene, &act).await?;
    Ok(hit)
}

/// Waits until everything that should run runs again.
async fn recover(scene: &Scene, act: &Act) -> Result<(), Stuck> {
    scene.goes_on(now()).await?;
    scene.end(act).await?;
    scene.story.mountpoint_pods().await;
    Ok(())
}

/// Counts the errors since `began`, and compares large files with what is in the bucket.
fn judge(scene: &Scene, fault: Fault, began: i64, report: &mut Report) {
    for pod in scene.records() {
        let is_reader = pod == "reader" || pod == "idle";
        for entry in scene.entries(&pod, began) {
            let bad = match &entry.what {
                Outcome::Done(name) => {
                    let large = witness::content(name).is_some_and(|content| content.len() == witness::LARGE);
                    if !is_reader && large {
                        check(scene, name, report);
                        // There would soon be no place for more.
                        let _ = scene.story.server.delete(scene.story.name, &format!("out/{name}"));
                    }
                    false
                }
                Outcome::Failed(error, name) => {
                    let written = witness::content(name).filter(|_| !is_reader).map(|content| content.len());
                    !fault.documented_errors(written).contains(error)
                }
                Outcome::Wrong(_) => true,
            };
            if bad {
                let errors = if is_reader {
                    &mut report.reader_errors_outside_documented
                } else {
                    &mut report.writer_errors_outside_documented
                };
                *errors += 1;
                report.say(format!("{fault}: {pod} recorded {entry:?}"));
            }
        }
    }
}

/// Compares a file whose close succeeded with its object.
fn check(scene: &Scene, name: &str, report: &mut Report) {
    let written = witness::content(name).unwrap();
    let stored = scene.story.server.get(scene.story.name, &format!("out/{name}"));
    let kept =
        stored.as_ref().map_or(0, |stored| stored.iter().zip(&written).filter(|(a, b)| a == b).count());
    report.acknowledged_bytes += written.len();
    if kept < written.len() || stored.as_ref().is_ok_and(|stored| stored.len() != written.len()) {
        report.acknowledged_bytes_lost += (written.len() - kept).max(1);
        report.say(format!(
            "{name}: {kept} of {} bytes are in the bucket: {:?}",
            written.len(),
            stored.err()
        ));
    }
}

/// All small files are still in the bucket; nothing else is left when every pod is gone.
async fn finish(scene: Scene, report: &mut Report) {
    if let Err(stuck) = scene.close().await {
        report.stuck_workloads += 1;
        report.say(stuck);
    }
    for pod in scene.records().into_iter().filter(|pod| pod != "reader" && pod != "idle") {
        for entry in scene.entries(&pod, 0) {
            if let Outcome::Done(name) = entry.what
                && witness::content(&name).is_some_and(|content| content.len() < witness::LARGE)
            {
                check(&scene, &name, report);
            }
        }
    }
    let left = reached(CLEAN_WITHIN, || async {
        let left: Vec<String> =
            scene.story.left().await.into_iter().chain(scene.provisioned().await).collect();
        Seen::some(left.is_empty().then_some(()), left.join("\n"))
    });
    if let Err(left) = left.await {
        report.orphans = left.lines().count();
        report.say(format!("left: {left}"));
        return;
    }
    let classes = Api::<StorageClass>::all(scene.story.here.client.clone());
    classes.delete(scene.story.name, &DeleteParams::default()).await.unwrap();
    scene.story.leaves_nothing().await;
}
