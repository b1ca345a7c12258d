//! Processes of the node, found by what they are.

use std::fs;

/// Those of this program, with this as their first argument if it is given.
pub fn processes(program: &str, argument: Option<&str>) -> Vec<u32> {
    let ids = fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|name| name.ends_with(program.as_bytes()))
            && argument.is_none_or(|argument| words.next() == Some(argument.as_bytes()))
    };
    ids.filter(ours).collect()
}

/// What the program has open.
pub fn descriptors(program: &str) -> Vec<String> {
    let open = |process: u32| fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = processes(program, None).into_iter().flat_map(open);
    links.filter_map(|link| Some(fs::read_link(link.path()).ok()?.display().to_string())).collect()
}

/// A file about the one process of this program that runs.
fn about(program: &str, file: &str) -> String {
    let process = processes(program, None).pop().unwrap_or_else(|| panic!("{program} does not run"));
    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap()
}

pub fn resident_mb(program: &str) -> f64 {
    let status = about(program, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1024.0 / 1e6
}

/// Processor time that it has used since its start.
pub fn processor_seconds(program: &str) -> f64 {
    let stat = about(program, "stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}
