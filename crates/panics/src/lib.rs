//! A panic in any thread or task ends the whole process. Without one of its threads the process would keep running and
//! nothing outside would notice; when it ends, kubelet restarts it. Not done by the build profile, so that tests can
//! share compiled dependencies with the programs.

use std::io::Write as _;

/// The message is printed first, as usual, and then once more as the last line, because that is what the mounter reports of a
/// mount process that died.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        // Also if there is nowhere to write it to, the process has to end.
        let _ = writeln!(std::io::stderr(), "{}", panic.to_string().replace('\n', " "));
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    const CHILD: &str = "S3_CSI_TEST_PANICS";
    const SIGABRT: i32 = 6;

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            super::abort_on_panic();
            let _ = std::thread::spawn(|| panic!("on purpose")).join();
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let this = "tests::a_panic_in_any_thread_ends_the_process";
        let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGABRT));
        let said = String::from_utf8(output.stderr).unwrap();
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("panicked at ") && last.ends_with(": on purpose"), "{said}");
    }
}
