//! The few things that can be set from outside. Read by hand: an argument parser would be most of this program.

use std::path::{Path, PathBuf};

const HELP: &str = "\
Takes over a FUSE descriptor from the node and has a bucket served on it.

Usage: s3-csi-mounter [OPTIONS]

Options:
      --comm <DIR>                The folder shared with the node [default: /comm]
      --mountpoint-bin-dir <DIR>  Serve with DIR/mount-s3 instead of our own program [env: MOUNTPOINT_BIN_DIR]
      --termination-log <FILE>    Where the reason of a failure goes [default: /dev/termination-log]
  -h, --help                      Print help
  -V, --version                   Print version";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) comm: PathBuf,
    pub(crate) program: Program,
    pub(crate) termination_log: PathBuf,
}

/// Which program serves, and so how it tells that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Ours, beside this one: prints a verdict.
    Own,
    /// `mount-s3` itself: prints that the bucket is mounted.
    MountS3(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Run(Flags),
    Text(String),
}

impl Flags {
    pub(crate) fn parse(
        arguments: impl Iterator<Item = String>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Wanted, String> {
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
                "--help" | "-h" => return Ok(Wanted::Text(HELP.to_owned())),
                "--version" | "-V" => {
                    return Ok(Wanted::Text(format!("s3-csi-mounter {}", env!("CARGO_PKG_VERSION"))));
                }
                _ => return Err(format!("{name} is not an option of this program; see --help")),
            }
        }
        let program = match folder.filter(|folder| !folder.is_empty()) {
            Some(folder) => Program::MountS3(Path::new(&folder).join("mount-s3")),
            None => Program::Own,
        };
        Ok(Wanted::Run(Self { comm, program, termination_log }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], folder: Option<&str>) -> Result<Wanted, String> {
        let environment = |name: &str| folder.filter(|_| name == "MOUNTPOINT_BIN_DIR").map(str::to_owned);
        Flags::parse(arguments.iter().map(|text| (*text).to_owned()), &environment)
    }

    #[test]
    fn a_pod_needs_none() {
        let Ok(Wanted::Run(flags)) = parse(&[], None) else { panic!() };
        assert_eq!((flags.comm, flags.program), ("/comm".into(), Program::Own));
    }

    #[test]
    fn another_program_can_be_named_as_in_the_reference() {
        for (arguments, folder) in [
            (&["--mountpoint-bin-dir", "/opt"][..], None),
            (&["--mountpoint-bin-dir=/opt"], Some("/else")),
            (&[], Some("/opt")),
        ] {
            let Ok(Wanted::Run(flags)) = parse(arguments, folder) else { panic!() };
            assert_eq!(flags.program, Program::MountS3("/opt/mount-s3".into()));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(
            parse(&["--com=/x"], None),
            Err("--com is not an option of this program; see --help".into())
        );
        assert_eq!(parse(&["--comm"], None), Err("--comm needs a value".into()));
        assert!(
            matches!(parse(&["-h"], None), Ok(Wanted::Text(text)) if text.contains("--mountpoint-bin-dir"))
        );
    }
}
