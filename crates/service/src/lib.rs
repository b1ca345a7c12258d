//! What both services need: logs, probes, metrics, watches, Events, backoff, the gRPC interfaces and a graceful stop.

pub mod backoff;
mod cut;
pub mod driver_identity;
pub mod events;
pub mod follow;
mod header_block;
pub mod identity;
pub mod keys;
pub mod lenient;
pub mod logs;
pub mod probes;
pub mod program;
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

    /// What holds secrets cannot be printed, and so not be logged by mistake.
    #[test]
    fn messages_with_secrets_have_no_debug() {
        let (definition, code) = (include_str!("../proto/csi.proto"), include_str!("generated/csi.rs"));
        let messages = definition.split("\nmessage ").skip(1).filter(|message| {
            let fields = message.split("\n}").next().unwrap_or_default();
            fields.contains("map<string, string> secrets")
        });
        let names: Vec<&str> = messages.filter_map(|message| message.split(' ').next()).collect();
        assert!(names.len() > 3, "{names:?}");
        for name in names {
            let (before, _) = code.split_once(&format!("pub struct {name} {{")).unwrap();
            let attributes = before.rsplit("\n}").next().unwrap_or_default();
            assert!(attributes.contains("skip_debug"), "{name}");
        }
    }
}
