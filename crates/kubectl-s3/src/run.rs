//! From a command line to an exit code: observe, decide, print.

use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::bundle::{self, Archive, Found, Scrubber};
use crate::doctor::{Examined, Report, examine, rights, rules};
use crate::error::PluginError;
use crate::exec::{ask_all, watch_all};
use crate::flags::{ClusterFlags, Command, Flags, Format, InsideFlags};
use crate::mounts::mounts;
use crate::observe::secrets::{self, Secrets};
use crate::observe::{Observer, Scope};
use crate::output;
use crate::readable::Readable;
use crate::self_check;
use crate::snapshot::Snapshot;
use crate::top::{self, Top};
use crate::why::why;

/// Something is wrong, and the output says what.
const WRONG: u8 = 1;
/// Whether something is wrong could not be determined.
pub const TROUBLE: u8 = 2;

pub async fn run(flags: Flags) -> Result<ExitCode, PluginError> {
    let Flags { command, cluster, output: format } = flags;
    if let Command::SelfCheck { buckets, authorities_from_stdin } = &command {
        let report = self_check::report(buckets, *authorities_from_stdin).await;
        print(Format::Json, &report, String::new)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::SelfTop { seconds } = &command {
        let activities = top::look(Duration::from_secs(*seconds)).map_err(PluginError::NodeService)?;
        print(Format::Json, &activities, String::new)?;
        return Ok(ExitCode::SUCCESS);
    }
    let observer = Observer::connect(&cluster).await?;
    match command {
        Command::Why { pod } => {
            let name = pod.strip_prefix("pod/").or_else(|| pod.strip_prefix("pods/")).unwrap_or(&pod);
            let pod = observer.pod(name).await?;
            let snapshot =
                Box::pin(observer.snapshot(Scope::Namespace(&observer.namespace), Secrets::Of(&pod))).await;
            let answer = why(&snapshot, &pod);
            print(format, &answer, || output::why(&answer))?;
            Ok(exit_code(answer.cause.is_none()))
        }
        Command::Mounts { all_namespaces } => {
            let (snapshot, namespace) = Box::pin(mounted(&observer, all_namespaces)).await?;
            let found = mounts(&snapshot, namespace);
            print(format, &found, || output::mounts(&found, snapshot.now, all_namespaces))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Top { all_namespaces, seconds } => {
            let (snapshot, namespace) = Box::pin(mounted(&observer, all_namespaces)).await?;
            let nodes = mounts(&snapshot, namespace).into_iter().map(|mount| mount.node).collect();
            let top = Top::of(watch_all(&cluster, &snapshot, &nodes, seconds).await, namespace);
            print(format, &top, || output::top(&top, all_namespaces))?;
            for (node, error) in &top.unreachable {
                eprintln!("warning: cannot ask the node service of {node}: {error}");
            }
            Ok(if top.unreachable.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(TROUBLE) })
        }
        Command::Doctor { inside } => {
            let (_, _, report) = Box::pin(doctor(&observer, &cluster, &inside)).await;
            print(format, &report, || output::doctor(&report))?;
            let unknown = report.healthy && !report.complete;
            Ok(if unknown { ExitCode::from(TROUBLE) } else { exit_code(report.healthy) })
        }
        Command::SupportBundle { file, most_pods, inside } => {
            let now = Timestamp::now();
            let path = file.unwrap_or_else(|| {
                format!("s3-csi-support-{}.tar", now.strftime("%Y-%m-%dT%H-%M-%SZ")).into()
            });
            // Collecting takes minutes, after which it is too late to find that there is no place for it.
            let archive = Archive::create(&path, now.as_second())?;
            let packed = Box::pin(pack(&observer, &cluster, &inside, archive, most_pods)).await;
            let packed = packed.inspect_err(|_| drop(fs::remove_file(&path)))?;
            for warning in &packed.warnings {
                eprintln!("warning: {warning}");
            }
            let summary = json!({"file": path, "files": packed.files, "warnings": packed.warnings});
            let text = format!(
                "Wrote {} files to {}. Look through it before you pass it on.\n",
                packed.files,
                path.display()
            );
            print(format, &summary, || text)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::SelfCheck { .. } | Command::SelfTop { .. } => Ok(ExitCode::SUCCESS),
    }
}

/// Everything about the mounts of a namespace, or of all.
async fn mounted(observer: &Observer, all_namespaces: bool) -> Result<(Snapshot, Option<&str>), PluginError> {
    let scope = if all_namespaces { Scope::Cluster } else { Scope::Namespace(&observer.namespace) };
    let snapshot = Box::pin(observer.snapshot(scope, Secrets::None)).await;
    // Without these there is nothing to show, which is not the same as nothing.
    if let Some(error) = snapshot.unreadable.get(&Readable::Attachments) {
        return Err(PluginError::Read { what: Readable::Attachments.into_str(), error: error.clone() });
    }
    Ok((snapshot, Some(observer.namespace.as_str()).filter(|_| !all_namespaces)))
}

/// What a bundle has become.
struct Packed {
    files: usize,
    warnings: Vec<String>,
}

async fn pack(
    observer: &Observer,
    cluster: &ClusterFlags,
    inside: &InsideFlags,
    mut archive: Archive,
    most_pods: usize,
) -> Result<Packed, PluginError> {
    let (snapshot, examined, report) = Box::pin(doctor(observer, cluster, inside)).await;
    let (values, unread) = secrets::values(&observer.client, &snapshot).await;
    let mounts = mounts(&snapshot, None);
    let found = Found { snapshot: &snapshot, examined: &examined, report: &report, mounts: &mounts };
    let scrubber = Scrubber::new(&values);
    let left_out = bundle::collect(&observer.client, &scrubber, &found, most_pods, &mut archive).await?;
    let unread = (!unread.is_empty()).then(|| {
        let names = unread.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        format!("cannot read the Secrets {names}: their values were not searched for, only what has the shape of a secret was removed")
    });
    let left_out = (left_out > 0)
        .then(|| format!("the logs of {left_out} pods were left out, see without-logs.json: --most-pods"));
    Ok(Packed { files: archive.finish()?, warnings: unread.into_iter().chain(left_out).collect() })
}

async fn doctor(
    observer: &Observer,
    cluster: &ClusterFlags,
    inside: &InsideFlags,
) -> (Snapshot, Examined, Report) {
    let snapshot = Box::pin(observer.snapshot(Scope::Cluster, Secrets::All)).await;
    let installation = snapshot.installation();
    let mut examined = Examined::default();
    if let Some(installation) = &installation {
        let needed = rules::needed(installation, &snapshot);
        examined.rights = Some(rights::review(&observer.client, &needed).await);
    }
    if !inside.no_exec {
        let authorities = match &installation {
            Some(installation) => observer.authorities(installation).await,
            None => None,
        };
        examined.inside = Some(ask_all(cluster, inside, &snapshot, authorities.as_deref()).await);
    }
    let report = examine(&snapshot, &examined);
    (snapshot, examined, report)
}

fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::from(WRONG) }
}

fn print(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), PluginError> {
    let text = match format {
        Format::Table => text(),
        Format::Json => serde_json::to_string_pretty(value).unwrap_or_default() + "\n",
    };
    // A reader that has seen enough, like `head`, is not an error.
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(PluginError::Print(error)),
        _ => Ok(()),
    }
}
