//! The flags of the services, as their help shows them.

use clap::CommandFactory as _;

use super::root;

/// `cargo xtask gen` writes it.
#[test]
fn the_committed_help_is_current() {
    for (program, flags) in [
        ("s3-csi-controller", controller::flags::Flags::command()),
        ("s3-csi-node", node::flags::Flags::command()),
    ] {
        let path = root().join(format!("docs/flags/{program}.txt"));
        // Without values of the environment, and without the blanks that clap leaves at line ends.
        let help = flags.mut_args(|flag| flag.hide_env_values(true)).term_width(100).render_long_help();
        let current = help.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n";
        if std::env::var_os("S3_CSI_GENERATE").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), current, "run `cargo xtask gen`");
    }
}
