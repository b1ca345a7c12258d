//! A table of measured figures, printed and written as flat JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::Result;

use crate::cache::checkout;

/// In the checkout.
pub(super) const OUTPUT: &str = "target/bench";

/// Samples of one measurement, in the unit that its key ends with.
struct Row {
    key: String,
    samples: Vec<f64>,
    /// The key of the row that this one is compared with, measured in the same run.
    reference: Option<String>,
}

#[derive(Default)]
pub(super) struct Figures(Vec<Row>);

impl Figures {
    pub(super) fn add(&mut self, key: &str, samples: Vec<f64>) {
        self.add_against(key, samples, None);
    }

    /// With the ratio to another figure of the same run.
    pub(super) fn add_against(&mut self, key: &str, samples: Vec<f64>, reference: Option<&str>) {
        self.0.push(Row { key: key.to_owned(), samples, reference: reference.map(str::to_owned) });
    }

    /// Prints the table and writes `target/bench/NAME.json`.
    pub(super) fn publish(&self, name: &str) -> Result<()> {
        let folder = checkout().join(OUTPUT);
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, serde_json::to_vec_pretty(&self.medians())?)?;
        println!("{}\n{}", self.table(), file.display());
        Ok(())
    }

    /// The worst sample for keys that say so.
    fn medians(&self) -> BTreeMap<&str, f64> {
        let figure = |row: &Row| {
            if row.key.contains("_worst_") {
                row.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max)
            } else {
                median(&row.samples)
            }
        };
        self.0.iter().map(|row| (row.key.as_str(), figure(row))).collect()
    }

    fn table(&self) -> String {
        let mut table = format!("{:<40}{:>10}{:>10}{:>6}{:>10}\n", "figure", "median", "worst", "n", "ratio");
        let medians = self.medians();
        for row in &self.0 {
            let middle = median(&row.samples);
            let samples = row.samples.iter().copied();
            // For times and sizes less is better, for ratios and rates more.
            let is_ratio = row.key.contains("_ratio") || row.key.contains("_vs_");
            let worst = if is_ratio || row.key.ends_with("_per_s") {
                samples.fold(f64::INFINITY, f64::min)
            } else {
                samples.fold(f64::NEG_INFINITY, f64::max)
            };
            let ratio = row
                .reference
                .as_deref()
                .and_then(|key| medians.get(key))
                .map(|other| format!("{:.2}", middle / other));
            let ratio = ratio.unwrap_or_else(|| "–".to_owned());
            let _ = writeln!(
                table,
                "{:<40}{middle:>10.2}{worst:>10.2}{:>6}{ratio:>10}",
                row.key,
                row.samples.len()
            );
        }
        table
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_median_worst_and_ratio() {
        let mut figures = Figures::default();
        figures.add("plain_s", vec![1.0, 3.0, 2.0]);
        figures.add_against("ours_s", vec![3.0, 5.0], Some("plain_s"));
        let table = figures.table();
        let words: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["ours_s", "4.00", "5.00", "2", "2.00"]);
    }
}
