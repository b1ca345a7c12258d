//! What every suite stands on: the cluster around it, waiting with a deadline, and touching served paths safely.

pub mod account;
pub mod chart;
pub mod claims;
pub mod confined;
pub mod controller;
pub mod csi;
pub mod faulty;
mod inside;
pub mod manifest;
pub mod mountpoint_pod;
pub mod node;
pub mod processes;
pub mod program;
pub mod relay;
pub mod right;
pub mod sanity;
mod served;
pub mod stage;
mod wait;

pub use inside::{Inside, cluster};
pub use served::within;
pub use stage::Stage;
pub use wait::{Seen, eventually};

#[cfg(test)]
mod tests {
    /// Each promise names its test, and each test its promise.
    #[test]
    fn the_documented_semantics_are_the_tested_ones() {
        let page = include_str!("../../docs/semantics.md");
        let rows = page.lines().filter(|line| line.starts_with('|')).skip(2);
        let promised = rows.flat_map(|row| {
            let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
            tests.split('`').skip(1).step_by(2).collect::<Vec<_>>()
        });
        let mut promised: Vec<&str> = promised.collect();
        let kernel = include_str!("../kernel/semantics.rs").split("#[test]\nfn ").skip(1);
        let cluster = include_str!("../cluster/semantics.rs").split("#[tokio::test]\nasync fn ").skip(1);
        let mut tests: Vec<&str> = kernel.chain(cluster).filter_map(|test| test.split('(').next()).collect();
        promised.sort_unstable();
        tests.sort_unstable();
        assert_eq!(promised, tests);
    }

    /// What people copy from the front page is what is applied by a test.
    #[test]
    fn the_front_page_shows_the_example() {
        let example = include_str!("../../examples/static.yaml");
        assert!(include_str!("../../README.md").contains(&format!("```yaml\n{example}```")));
    }
}
