//! One name for everything that happens for a workload or a claim, in the logs of all programs.

/// The UID of a pod or claim without its dashes: 32 hexadecimal digits, which is the form of a W3C trace id. So each program
/// derives the same id by itself, and tools for traces accept it.
pub fn id(uid: &str) -> String {
    uid.replace('-', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_becomes_a_trace_id() {
        assert_eq!(id("0aa1f7a1-6a4e-4c7c-9a3e-0242ac120002"), "0aa1f7a16a4e4c7c9a3e0242ac120002");
        // The UID of a static pod has no dashes.
        assert_eq!(id("9a3e0242ac1200020aa1f7a16a4e4c7c"), "9a3e0242ac1200020aa1f7a16a4e4c7c");
    }
}
