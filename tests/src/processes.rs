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

/// The only running process of this program.
fn process(program: &str) -> u32 {
    processes(program, None).pop().unwrap_or_else(|| panic!("{program} is not running"))
}

pub fn resident_mb(program: &str) -> f64 {
    memory_mb(process(program), "VmRSS:")
}

/// A field of the process's status: `VmRSS:` is what it has now, `VmHWM:` the most it has had.
pub fn memory_mb(process: u32, field: &str) -> f64 {
    megabytes(&format!("/proc/{process}/status"), field)
}

/// A line `FIELD: 17 kB` of a file of the kernel's, whose kB has 1024 bytes. A megabyte has a million.
pub fn megabytes(file: &str, field: &str) -> f64 {
    let content = fs::read_to_string(file).unwrap();
    let line = content.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1024.0 / 1e6
}

pub fn processor_seconds(program: &str) -> f64 {
    processor_seconds_of(process(program))
}

/// CPU time used since the start of the process.
pub fn processor_seconds_of(process: u32) -> f64 {
    processor_times_of(process).iter().sum()
}

/// The same in user mode and in the kernel.
pub fn processor_times_of(process: u32) -> [f64; 2] {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    [fields[11], fields[12]].map(|ticks| ticks.parse::<f64>().unwrap() / 100.0)
}
