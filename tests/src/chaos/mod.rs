//! The kill matrix: every part is killed and stopped while volumes are mounted, read, written, unmounted, provisioned and
//! deleted. Programs in pods check every byte they read and record every file whose close succeeded.

mod claims;
mod inject;
mod judge;
pub mod matrix;
mod scene;
pub mod selection;
mod target;

use std::time::{Duration, Instant};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::DeleteParams;
use xtask::cluster::Node;
use xtask::witness;

use crate::{Seen, reached};
use judge::{Judge, Verdict, reads};
use matrix::Fault;
use scene::{Act, Scene, Stuck, now};

/// After the last workload has ended.
const CLEAN_WITHIN: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub struct Report {
    pub planned: usize,
    /// That hit something before the limit.
    pub faults: usize,
    /// That came too late: the process had ended with its workload.
    pub too_late: usize,
    pub acknowledged_bytes: usize,
    pub acknowledged_bytes_lost: usize,
    pub orphans: usize,
    /// Parts that the bucket still stores, and that no file shows. A killed process cannot abort its upload.
    pub unfinished_uploads: usize,
    pub stuck_workloads: usize,
    pub reader_errors_outside_documented: usize,
    pub writer_errors_outside_documented: usize,
    /// One line for each of the above that should not be, and for each fault that hit nothing although it should.
    pub details: Vec<String>,
}

impl Report {
    fn say(&mut self, line: String) {
        eprintln!("{line}");
        self.details.push(line);
    }
}

/// Injects these faults on this node, until the limit. Stops at the first workload that is stuck, because a later fault would
/// hide the reason. Calls `show` after each fault.
pub async fn run(node: Node, faults: Vec<Fault>, limit: Duration, show: impl Fn(&Report)) -> Report {
    let scene = Scene::set(node).await;
    let mut report = Report { planned: faults.len(), ..Report::default() };
    let mut records = Records::default();
    let began = Instant::now();
    for fault in faults {
        if began.elapsed() > limit {
            break;
        }
        let at = Instant::now();
        records.judge.begin(fault, now());
        let outcome = inject(&scene, fault).await;
        match outcome {
            Ok(true) => report.faults += 1,
            Ok(false) if fault.may_come_too_late() => {
                eprintln!("{fault}: what it should hit has ended");
                report.too_late += 1;
            }
            Ok(false) => report.say(format!("{fault}: there is nothing to hit")),
            Err(ref stuck) => {
                report.faults += 1;
                report.stuck_workloads += 1;
                report.say(format!("{fault}: {stuck}"));
            }
        }
        if outcome.is_ok() {
            records.judge.recovered(now());
        }
        records.read(&scene, &mut report);
        eprintln!("{:>4} {fault}: {:.0} s", report.faults, at.elapsed().as_secs_f64());
        show(&report);
        if outcome.is_err() {
            break;
        }
    }
    finish(scene, records, &mut report).await;
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

#[derive(Default)]
struct Records {
    judge: Judge,
    /// Files whose close succeeded, and which stay in the bucket until the end.
    small: Vec<String>,
}

impl Records {
    /// Counts the errors that were recorded since the last call, and compares large files with what is in the bucket.
    fn read(&mut self, scene: &Scene, report: &mut Report) {
        for pod in scene.records() {
            for verdict in self.judge.judge(&pod, &scene.recorded(&pod)) {
                match verdict {
                    Verdict::Acknowledged(name) if witness::length(&name) == Some(witness::LARGE) => {
                        if check(scene, &name, report) {
                            // There would soon be no place for more.
                            let _ = scene.story.server.delete(scene.story.name, &format!("out/{name}"));
                        }
                    }
                    Verdict::Acknowledged(name) => self.small.push(name),
                    Verdict::Undocumented(line) => {
                        let errors = if reads(&pod) {
                            &mut report.reader_errors_outside_documented
                        } else {
                            &mut report.writer_errors_outside_documented
                        };
                        *errors += 1;
                        report.say(line);
                    }
                }
            }
        }
    }
}

/// Whether the object of a file whose close succeeded has its content. If not, it is kept with the logs.
fn check(scene: &Scene, name: &str, report: &mut Report) -> bool {
    let written = witness::content(name).unwrap();
    let stored = scene.story.server.get(scene.story.name, &format!("out/{name}"));
    let kept =
        stored.as_ref().map_or(0, |stored| stored.iter().zip(&written).filter(|(a, b)| a == b).count());
    report.acknowledged_bytes += written.len();
    if stored.as_ref().is_ok_and(|stored| *stored == written) {
        return true;
    }
    report.acknowledged_bytes_lost += (written.len() - kept).max(1);
    let error = stored.as_ref().err();
    report.say(format!("{name}: {kept} of {} bytes are in the bucket: {error:?}", written.len()));
    if let Ok(stored) = stored {
        scene.keep(name, &stored);
    }
    false
}

/// Judges what the programs recorded until their end. All small files are still in the bucket; nothing else is left when
/// every pod is gone.
async fn finish(scene: Scene, mut records: Records, report: &mut Report) {
    if let Err(stuck) = scene.close().await {
        report.stuck_workloads += 1;
        report.say(stuck);
    }
    records.read(&scene, report);
    for name in &records.small {
        check(&scene, name, report);
    }
    report.unfinished_uploads = scene.story.server.unfinished_uploads(scene.story.name).unwrap().len();
    let left = reached(CLEAN_WITHIN, || async {
        let left: Vec<String> =
            scene.story.left().await.into_iter().chain(scene.provisioned().await).collect();
        Seen::some(left.is_empty().then_some(()), left.join("\n"))
    });
    if let Err(left) = left.await {
        report.orphans = left.lines().count();
        report.say(format!("left: {left}"));
    }
    if !report.details.is_empty() {
        for pod in scene.records() {
            scene.keep(&pod, scene.recorded(&pod).as_bytes());
        }
        return;
    }
    let classes = Api::<StorageClass>::all(scene.story.here.client.clone());
    classes.delete(scene.story.name, &DeleteParams::default()).await.unwrap();
    scene.story.leaves_nothing().await;
}
