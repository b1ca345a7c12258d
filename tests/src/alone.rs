//! Tests that are affected when their process starts another one: until it executes its program, that one has a copy of every
//! open file, and closing the copies is a close like any other for a mount. Other tests start programs all the time.

use std::process::Command;

const ALONE: &str = "S3_CSI_ALONE";

/// Runs the test in a process that runs no other. It must be the whole of the test's function.
pub fn alone<F: FnOnce()>(test: F) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    // `program::module::function::{{closure}}`
    let path = std::any::type_name::<F>();
    let name = path.split_once("::").and_then(|(_, rest)| rest.strip_suffix("::{{closure}}"));
    let name = name.unwrap_or_else(|| panic!("{path} is not a closure of a test"));
    let program = std::env::current_exe().unwrap();
    let output =
        Command::new(program).args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}{errors}");
}
