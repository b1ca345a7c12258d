//! What is printed: tables for people, JSON for programs.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use crate::doctor::{Level, Report};
use crate::mounts::Mount;
use crate::top::{Activity, Top};
use crate::why::{Answer, State};

/// Columns as wide as their longest cell, two blanks apart.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// As kubectl shows it: `12s`, `5m`, `3h`, `2d`.
pub fn age(span: SignedDuration) -> String {
    match span.as_secs() {
        seconds if seconds < 120 => format!("{}s", seconds.max(0)),
        seconds if seconds < 120 * 60 => format!("{}m", seconds / 60),
        seconds if seconds < 48 * 3600 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

pub fn mounts(mounts: &[Mount], now: Timestamp, all_namespaces: bool) -> String {
    if mounts.is_empty() {
        return "No mounts found.\n".to_owned();
    }
    let mut header = vec![
        "WORKLOAD",
        "VOLUME",
        "BUCKET",
        "NODE",
        "MOUNTPOINT POD",
        "AGE",
        "STATE",
        "VERSION",
        "ATTACHMENT",
        "LAST ERROR",
    ];
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for mount in mounts {
        let Mount { workload, volume, bucket, node, mountpoint_pod, attachment, version, .. } = mount.clone();
        let age = age(now.duration_since(mount.since));
        // One line is one mount.
        let error = mount.last_error.replace('\n', " ");
        let mut row = vec![
            workload,
            volume,
            bucket,
            node,
            mountpoint_pod,
            age,
            mount.state.into_str().to_owned(),
            version,
            attachment,
            error,
        ];
        if all_namespaces {
            row.insert(0, mount.namespace.clone());
        }
        rows.push(row);
    }
    table(&rows)
}

pub fn top(top: &Top, all_namespaces: bool) -> String {
    if top.mounts.is_empty() {
        return "No mounts found.\n".to_owned();
    }
    let header = [
        "NAMESPACE",
        "CLAIM",
        "VOLUME",
        "NODE",
        "REQUESTS/s",
        "ERRORS/s",
        "LATENCY",
        "READ/s",
        "WRITTEN/s",
        "CACHE",
        "UPLOADS",
        "OLDEST REQUEST",
    ];
    let rows = std::iter::once(header.map(str::to_owned)).chain(top.mounts.iter().map(activity));
    let shown = |row: [String; 12]| row.into_iter().skip(usize::from(!all_namespaces)).collect();
    let rows: Vec<Vec<String>> = rows.map(shown).collect();
    table(&rows)
}

fn activity(mount: &Activity) -> [String; 12] {
    let Activity { namespace, claim, volume, node, .. } = mount.clone();
    let unknown = || "-".to_owned();
    [
        namespace,
        claim,
        volume,
        node,
        format!("{:.1}", mount.requests_per_second),
        format!("{:.1}", mount.errors_per_second),
        mount.latency_seconds.map_or_else(unknown, |seconds| format!("{:.0} ms", seconds * 1e3)),
        bytes(mount.read_bytes_per_second),
        bytes(mount.written_bytes_per_second),
        mount.cache_hit_ratio.map_or_else(unknown, |ratio| format!("{:.0} %", ratio * 100.0)),
        format!("{:.0}", mount.uploads),
        format!("{:.0}s", mount.oldest_request_seconds),
    ]
}

fn bytes(count: f64) -> String {
    let (mut count, mut units) = (count, ["B", "KiB", "MiB", "GiB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while count >= 1024.0
        && let Some(next) = units.next()
    {
        (count, unit) = (count / 1024.0, next);
    }
    if unit == "B" { format!("{count:.0} B") } else { format!("{count:.1} {unit}") }
}

pub fn why(answer: &Answer) -> String {
    let Answer { namespace, pod, node, phase, .. } = answer;
    let place = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    let mut text = format!("Pod {namespace}/{pod}{place}: {phase}\n");
    if answer.volumes.is_empty() && answer.cause.is_none() {
        text.push_str("It has no volumes of this driver.\n");
        return text;
    }
    let mut rows = Vec::new();
    for chain in &answer.volumes {
        for link in &chain.links {
            let mark = match link.state {
                State::Ok => "ok",
                State::Stops => "STOP",
                State::Warns => "warn",
                State::Unknown => "?",
                State::NotReached => "-",
            };
            rows.push(vec![
                String::new(),
                format!("{mark:4}"),
                link.step.into_str().to_owned(),
                link.object.clone(),
                link.note.replace('\n', " "),
            ]);
        }
        rows.push(Vec::new());
    }
    // What one volume's chain is about is in its first line.
    let _ = write!(text, "\n{}", table(&rows));
    match &answer.cause {
        None if phase.has_ended() => text.push_str("The pod has ended; its volumes are no longer needed.\n"),
        None => text.push_str("Nothing is wrong with its volumes.\n"),
        Some(cause) => {
            let _ = write!(
                text,
                "Reason:  {} ({})\n         {}\nRemedy:  {}\nTry:     {}\n",
                cause.reason,
                cause.step.into_str(),
                cause.message,
                cause.remedy,
                cause.command
            );
        }
    }
    text
}

pub fn doctor(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Ok => "ok",
            Level::Info => "info",
            Level::Skipped => "skipped",
            Level::Unknown => "unknown",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        };
        let said = [finding.object.as_str(), finding.message.as_str()];
        let said: Vec<&str> = said.into_iter().filter(|part| !part.is_empty()).collect();
        let line = format!("{mark:7}  {:13}  {}", finding.check.into_str(), said.join(": "));
        let _ = writeln!(text, "{}", line.trim_end());
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "{:24} -> {}", "", finding.remedy);
        }
    }
    let count = |level: Level| report.findings.iter().filter(|finding| finding.level == level).count();
    let _ = writeln!(
        text,
        "\n{} errors, {} warnings, {} unknown, {} skipped",
        count(Level::Error),
        count(Level::Warning),
        count(Level::Unknown),
        count(Level::Skipped)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Examined, examine};
    use crate::why::scene::{running, scene};

    #[test]
    fn ages_are_written_as_kubectl_writes_them() {
        for (seconds, text) in [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(age(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_answer_shows_where_the_chain_stops() {
        let mut snapshot = scene();
        snapshot.node_services.clear();
        let text = why(&crate::why::why(&snapshot, &snapshot.pods[0].clone()));
        for line in [
            "ok    claim",
            "STOP  node service",
            "-     attachment",
            "Reason:  NodeServiceMissing",
            "Try:     kubectl",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        snapshot = scene();
        assert!(why(&crate::why::why(&snapshot, &running())).contains("Nothing is wrong"));
    }

    #[test]
    fn mounts_are_one_line_each() {
        let snapshot = scene();
        let found = crate::mounts::mounts(&snapshot, None);
        let text = mounts(&found, snapshot.now, true);
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.starts_with("NAMESPACE  WORKLOAD") && text.contains("120s") || text.contains("2m"),
            "{text}"
        );
        assert_eq!(mounts(&[], snapshot.now, false), "No mounts found.\n");
    }

    #[test]
    fn a_mount_that_does_something_is_one_line() {
        let mount = Activity {
            claim: "data".into(),
            requests_per_second: 12.34,
            latency_seconds: Some(0.0123),
            read_bytes_per_second: 3.5 * 1024.0 * 1024.0,
            ..Activity::default()
        };
        let text = top(&Top { mounts: vec![mount], ..Top::default() }, false);
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[0][0], "CLAIM");
        assert_eq!(cells[1], ["data", "12.3", "0.0", "12", "ms", "3.5", "MiB", "0", "B", "-", "0", "0s"]);
        assert_eq!(top(&Top::default(), true), "No mounts found.\n");
    }

    #[test]
    fn a_report_ends_with_its_sum() {
        let text = doctor(&examine(&scene(), &Examined::default()));
        assert!(text.contains("ERROR    definition") && text.contains("2 errors"), "{text}");
    }
}
