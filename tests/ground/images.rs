use std::fs;
use std::process::Command;
use std::time::SystemTime;

use xtask::cache::{Cache, checkout};
use xtask::command::run;
use xtask::copy::mirror;
use xtask::{cargo, image};

const PROGRAMS: &[&str] = &["s3-csi-controller", "s3-csi-mounter", "s3-csi-mountpoint", "s3-csi-node"];

/// Compiles our crates and links the programs again, from another folder and into another. Dependencies are copied, because
/// they take minutes to compile. They could only contribute paths of this machine, and no program contains those.
#[test]
fn builds_in_different_folders_give_the_same_images() {
    let cache = Cache::open().unwrap();
    let first = cargo::shipped(&cache).unwrap();
    let elsewhere = tempfile::tempdir_in(cache.root()).unwrap();
    let (copy, target) = (elsewhere.path().join("checkout"), elsewhere.path().join("target"));
    mirror(checkout(), &copy).unwrap();
    fs::create_dir(&target).unwrap();
    run(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&first).arg(&target)).unwrap();
    let began = SystemTime::now();
    let second = cargo::shipped_from(&cache, &copy, &target).unwrap();
    for program in PROGRAMS {
        let built = fs::metadata(second.join(program)).unwrap().modified().unwrap();
        assert!(built > began, "{program} was built");
    }
    for name in ["driver", "mounter"] {
        let [one, two] = [&first, &second].map(|programs| image::write(elsewhere.path(), name, programs));
        assert_eq!(one.unwrap().digest, two.unwrap().digest, "{name}");
    }
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let places =
        [checkout().to_str().unwrap(), cache.target().to_str().unwrap(), &home.unwrap()].map(str::to_owned);
    for program in PROGRAMS {
        let content = fs::read(first.join(program)).unwrap();
        for place in &places {
            let found = content.windows(place.len()).any(|window| window == place.as_bytes());
            assert!(!found, "{program} contains {place}");
        }
    }
}
