//! What `cargo xtask bench` runs inside a cluster: measures, and prints `{"key": [samples]}` on its last line.

mod chaos;
mod controller;
mod data;
mod mount;
mod provision;
mod survive;

use std::collections::BTreeMap;

use mount::Part;

type Samples = BTreeMap<&'static str, Vec<f64>>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let samples = match arguments.as_slice() {
        ["chaos", seed, minutes, repetitions, only] => {
            let [seed, minutes, repetitions] = [seed, minutes, repetitions].map(|it| it.parse().unwrap());
            in_runtime(chaos::measure(seed, minutes, repetitions, only))
        }
        ["controller"] => in_runtime(controller::measure()),
        ["data", other, only] => {
            let given = |argument| Some(argument).filter(|argument: &&str| !argument.is_empty());
            data::measure(given(other), given(only))
        }
        ["mount", repetitions] => in_runtime(mount::measure(repetitions.parse().unwrap(), Part::All)),
        ["mount", repetitions, "warm"] => {
            in_runtime(mount::measure(repetitions.parse().unwrap(), Part::Warm))
        }
        ["provision"] => in_runtime(provision::measure()),
        ["survive"] => survive::measure(),
        _ => {
            panic!("unknown benchmark: use `chaos`, `controller`, `data`, `mount`, `provision` or `survive`")
        }
    };
    println!("{}", serde_json::to_string(&samples).unwrap());
}

/// Shows all samples so far: a run that is ended by its deadline has no last line.
fn show(samples: &Samples) {
    eprintln!("{}", serde_json::to_string(samples).unwrap());
}

fn in_runtime(measuring: impl Future<Output = Samples>) -> Samples {
    tokio::runtime::Runtime::new().unwrap().block_on(measuring)
}
