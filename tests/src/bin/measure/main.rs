//! What `cargo xtask bench` runs inside a cluster: measures, and prints `{"key": [samples]}` on its last line.

mod controller;
mod data;
mod mount;
mod provision;

use std::collections::BTreeMap;

type Samples = BTreeMap<&'static str, Vec<f64>>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let samples = match arguments.as_slice() {
        ["controller"] => in_runtime(controller::measure()),
        ["data"] => data::measure(None),
        ["data", folder] => data::measure(Some(folder)),
        ["mount", repetitions] => in_runtime(mount::measure(repetitions.parse().unwrap())),
        ["provision"] => in_runtime(provision::measure()),
        _ => panic!("unknown benchmark: use `controller`, `data`, `mount` or `provision`"),
    };
    println!("{}", serde_json::to_string(&samples).unwrap());
}

fn in_runtime(measuring: impl Future<Output = Samples>) -> Samples {
    tokio::runtime::Runtime::new().unwrap().block_on(measuring)
}
