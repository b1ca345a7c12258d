//! Finds processes of the node.

use std::fs;

/// The processes of this program, with this first argument if it is given.
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

/// The open files of the program.
pub fn descriptors(program: &str) -> Vec<String> {
    let open = |process: u32| fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = processes(program, None).into_iter().flat_map(open);
    links.filter_map(|link| Some(fs::read_link(link.path()).ok()?.display().to_string())).collect()
}

/// A file in `/proc` of the only running process of this program.
fn about(program: &str, file: &str) -> String {
    let process = processes(program, None).pop().unwrap_or_else(|| panic!("{program} is not running"));
    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap()
}

pub fn resident_mb(program: &str) -> f64 {
    let status = about(program, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1024.0 / 1e6
}

/// CPU time used since the start of the process.
pub fn processor_seconds(program: &str) -> f64 {
    let stat = about(program, "stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}
