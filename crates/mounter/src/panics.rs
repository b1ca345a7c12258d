//! A panic ends the whole process, whichever thread it happens in: what is left would go on with half of its threads, and only
//! the end of a process is noticed from outside. Not by the build profile: then its tests could not share what is compiled.

/// After the message that is printed anyway.
pub fn end_the_process() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    const CHILD: &str = "S3_CSI_TEST_PANICS";

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            super::end_the_process();
            let _ = std::thread::spawn(|| panic!("on purpose")).join();
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let this = "panics::tests::a_panic_in_any_thread_ends_the_process";
        let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "aborted");
        assert!(String::from_utf8_lossy(&output.stderr).contains("on purpose"));
    }
}
