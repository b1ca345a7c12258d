//! The chart's alerts and its dashboard: promtool tests the alerts, and every metric that they name exists.

use serde_json::Value;

const ALERTS: &str = include_str!("../../../charts/s3-csi/monitoring/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../charts/s3-csi/monitoring/dashboard.json");

fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(ALERTS).unwrap();
    rules["groups"][0]["rules"].as_array().unwrap().clone()
}

/// The queries of the dashboard; Grafana puts the interval in.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m")).collect()
}

/// Of the alerts and the dashboard.
pub fn queries() -> Vec<String> {
    let alerts = alerts().into_iter().map(|alert| alert["expr"].as_str().unwrap().to_owned());
    alerts.chain(expressions()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/metrics.md");

    /// Debian's package `prometheus` has it.
    fn promtool(arguments: &[&str], file: &Path) {
        let output = Command::new("promtool").args(arguments).arg(file).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }

    fn here() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/monitoring")
    }

    #[test]
    fn every_alert_fires_when_it_should_and_only_then() {
        promtool(&["test", "rules"], &here().join("alerts.yaml"));
    }

    /// The metrics that a query names, without the suffixes of histograms.
    fn metrics(query: &str) -> BTreeSet<&str> {
        let words = query.split(|one: char| !one.is_alphanumeric() && one != '_');
        let names = words.filter(|word| word.starts_with("s3_csi_"));
        names.map(|name| name.trim_end_matches("_count").trim_end_matches("_bucket")).collect()
    }

    #[test]
    fn alerts_and_dashboard_show_metrics_that_exist() {
        let queries = queries();
        assert!(queries.len() > 20, "{queries:?}");
        for query in &queries {
            let named = metrics(query);
            // Prometheus itself has a metric of each program.
            assert!(!named.is_empty() || query.contains("up{job="), "{query}");
            // The table of this page is compared with the registered metrics.
            let unknown = named.iter().find(|name| !PAGE.contains(&format!("`{name}`")));
            assert_eq!(unknown, None, "{query}");
        }
        // And the dashboard leaves none out.
        let shown: BTreeSet<&str> = queries.iter().flat_map(|query| metrics(query)).collect();
        let documented = PAGE.split('`').filter(|span| span.starts_with("s3_csi_") && !span.ends_with('…'));
        let hidden: BTreeSet<&str> = documented.filter(|name| !shown.contains(name)).collect();
        assert_eq!(hidden, BTreeSet::new());
    }

    /// Prometheus itself reads the queries of the dashboard.
    #[test]
    fn the_queries_of_the_dashboard_are_valid() {
        let rules: Vec<Value> = expressions()
            .into_iter()
            .enumerate()
            .map(|(index, query)| serde_json::json!({"record": format!("panel:{index}"), "expr": query}))
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        let rules = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
        fs::write(file.path(), rules.to_string()).unwrap();
        promtool(&["check", "rules"], file.path());
    }

    #[test]
    fn every_alert_is_documented() {
        for alert in alerts() {
            let name = alert["alert"].as_str().unwrap();
            assert!(PAGE.contains(&format!("| `{name}` |")), "docs/metrics.md does not explain {name}");
        }
    }
}
