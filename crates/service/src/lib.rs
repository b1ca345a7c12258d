//! What every long-running program needs: logs, probes, metrics, the gRPC interfaces, and the wish to stop.

pub mod identity;
pub mod lenient;
pub mod logs;
pub mod probes;
pub mod socket;
pub mod stop;

/// The Container Storage Interface, as far as the driver serves it.
#[allow(warnings, clippy::all, clippy::pedantic, reason = "generated")]
pub mod csi {
    include!("generated/csi.rs");
}

/// kubelet's registry of plugins.
#[allow(warnings, clippy::all, clippy::pedantic, reason = "generated")]
pub mod registration {
    include!("generated/registration.rs");
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    /// The generator is not part of every build; its output names what it was made from.
    #[test]
    fn the_committed_interfaces_are_current() {
        for (definition, code) in [
            (include_str!("../proto/csi.proto"), include_str!("generated/csi.rs")),
            (include_str!("../proto/registration.proto"), include_str!("generated/registration.rs")),
        ] {
            let hash = base16ct::lower::encode_string(&Sha256::digest(definition));
            assert!(code.lines().nth(1).is_some_and(|line| line.ends_with(&hash)), "run `cargo xtask gen`");
        }
    }
}
