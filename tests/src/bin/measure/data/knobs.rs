//! Settings of the kernel and of the library that a mount could have instead of those that are shipped.

use xtask::s3::Client;

use super::mounted::{Front, Mounted};
use super::place::PLACES;
use super::rows::{ROWS, Row};
use super::{OURS, ROUNDS, record, show};
use crate::Samples;

const USED: [&str; 5] = ["seq_read", "seq_read_4", "seq_write", "random_256k", "small_read_16"];
/// How many requests the kernel may send without a program that waits for them: reads ahead, and writes of `mmap`.
const MAX_BACKGROUND: &str = "UNSTABLE_MOUNTPOINT_MAX_BACKGROUND";
/// Less and more of each.
const SETTINGS: [Front<'_>; 8] = [
    Front { name: "threads_4", mount: &["--max-threads=4"], ..OURS },
    Front { name: "threads_64", mount: &["--max-threads=64"], ..OURS },
    Front { name: "background_12", environment: &[(MAX_BACKGROUND, "12")], ..OURS },
    Front { name: "background_256", environment: &[(MAX_BACKGROUND, "256")], ..OURS },
    Front { name: "read_ahead_128_kib", read_ahead: Some("128"), ..OURS },
    Front { name: "read_ahead_4_mib", read_ahead: Some("4096"), ..OURS },
    Front { name: "parts_of_5_mib", mount: &["--part-size=5242880"], ..OURS },
    Front { name: "parts_of_16_mib", mount: &["--part-size=16777216"], ..OURS },
];

/// Throughput divided by that of what is shipped.
pub(super) fn measure(samples: &mut Samples, client: &Client) {
    let rows: Vec<&'static Row> = ROWS.iter().filter(|row| USED.contains(&row.key)).collect();
    let [near, ..] = &PLACES;
    for round in 0..ROUNDS {
        let shipped = Mounted::measure(client, &OURS, near, &rows, round);
        for setting in &SETTINGS {
            let measured = Mounted::measure(client, setting, near, &rows, round);
            record(samples, &measured, &shipped, &format!("_{}_vs_shipped", setting.name));
        }
        show(samples);
    }
}
