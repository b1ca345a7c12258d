//! The command line. Parsed by hand: an argument parser would be most of this program.

use std::path::{Path, PathBuf};

const HELP: &str = "\
Receives a FUSE descriptor from the node service and supervises the process that serves a bucket on it.

Usage: s3-csi-mounter [OPTIONS]

Options:
      --comm <DIR>                The folder shared with the node service [default: /comm]
      --mountpoint-bin-dir <DIR>  Serve with DIR/mount-s3 instead of s3-csi-mountpoint [env: MOUNTPOINT_BIN_DIR]
      --termination-log <FILE>    File for the reason of a failure [default: /dev/termination-log]
  -h, --help                      Print help
  -V, --version                   Print version";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) comm: PathBuf,
    pub(crate) program: Program,
    pub(crate) termination_log: PathBuf,
}

/// Which program serves, and so how it reports that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `s3-csi-mountpoint` beside this program: prints a mount reply.
    Own,
    /// `mount-s3`: prints that the bucket is mounted.
    MountS3(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    Run(Flags),
    /// `--help` or `--version`.
    Print(String),
}

impl Flags {
    pub(crate) fn parse(
        arguments: impl Iterator<Item = String>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Invocation, String> {
        let mut comm = PathBuf::from("/comm");
        let mut folder = environment("MOUNTPOINT_BIN_DIR");
        let mut termination_log = PathBuf::from("/dev/termination-log");
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let mut value =
                || value.clone().or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value"));
            match name.as_str() {
                "--comm" => comm = value()?.into(),
                "--mountpoint-bin-dir" => folder = Some(value()?),
                "--termination-log" => termination_log = value()?.into(),
                "--help" | "-h" => return Ok(Invocation::Print(HELP.to_owned())),
                "--version" | "-V" => {
                    return Ok(Invocation::Print(format!("s3-csi-mounter {}", env!("CARGO_PKG_VERSION"))));
                }
                _ => return Err(format!("unknown option {name}; see --help")),
            }
        }
        let program = match folder.filter(|folder| !folder.is_empty()) {
            Some(folder) => Program::MountS3(Path::new(&folder).join("mount-s3")),
            None => Program::Own,
        };
        Ok(Invocation::Run(Self { comm, program, termination_log }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], folder: Option<&str>) -> Result<Invocation, String> {
        let environment = |name: &str| folder.filter(|_| name == "MOUNTPOINT_BIN_DIR").map(str::to_owned);
        Flags::parse(arguments.iter().map(|text| (*text).to_owned()), &environment)
    }

    #[test]
    fn the_defaults_are_those_of_a_pod() {
        let Ok(Invocation::Run(flags)) = parse(&[], None) else { panic!() };
        assert_eq!((flags.comm, flags.program), ("/comm".into(), Program::Own));
    }

    #[test]
    fn mount_s3_can_be_chosen_by_flag_or_variable() {
        for (arguments, folder) in [
            (&["--mountpoint-bin-dir", "/opt"][..], None),
            (&["--mountpoint-bin-dir=/opt"], Some("/else")),
            (&[], Some("/opt")),
        ] {
            let Ok(Invocation::Run(flags)) = parse(arguments, folder) else { panic!() };
            assert_eq!(flags.program, Program::MountS3("/opt/mount-s3".into()));
        }
    }

    #[test]
    fn errors_name_the_option() {
        assert_eq!(parse(&["--com=/x"], None), Err("unknown option --com; see --help".into()));
        assert_eq!(parse(&["--comm"], None), Err("--comm needs a value".into()));
        assert!(
            matches!(parse(&["-h"], None), Ok(Invocation::Print(text)) if text.contains("--mountpoint-bin-dir"))
        );
    }
}
