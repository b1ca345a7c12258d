use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use xtask::cache::{Cache, checkout};
use xtask::command::run;
use xtask::copy::mirror;
use xtask::{cargo, image};

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
    for (_, program) in cargo::SHIPPED {
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
    for (_, program) in cargo::SHIPPED {
        let content = fs::read(first.join(program)).unwrap();
        for place in &places {
            let found = content.windows(place.len()).any(|window| window == place.as_bytes());
            assert!(!found, "{program} contains {place}");
        }
    }
}

/// The first stage of the Dockerfile cannot run here, because its base image comes from a registry. What it runs does, and the
/// stages that become images only add to the files what is compared here.
#[test]
fn the_dockerfile_gets_the_files_of_the_image() {
    let cache = Cache::open().unwrap();
    let programs = cargo::shipped(&cache).unwrap();
    let dockerfile = fs::read_to_string(checkout().join("Dockerfile")).unwrap();
    // The same files give the same bytes.
    let packed = |folder: &Path| {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner", "--directory"]);
        let output = tar.arg(folder).arg(".").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    for name in ["driver", "mounter"] {
        let folder = tempfile::tempdir_in(cache.root()).unwrap();
        let [rootfs, layer] = ["rootfs", "layer"].map(|part| folder.path().join(part));
        assert!(dockerfile.contains(&format!("cargo xtask image --only {name} --rootfs /{name}")), "{name}");
        run(super::xtask().args(["image", "--only", name, "--rootfs"]).arg(&rootfs)).unwrap();
        let (config, content) =
            image::parts(&image::write(folder.path(), name, &programs).unwrap().archive).unwrap();
        let archive = folder.path().join("layer.tar");
        fs::write(&archive, content).unwrap();
        fs::create_dir(&layer).unwrap();
        run(Command::new("tar")
            .args(["--extract", "--preserve-permissions", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(&layer))
        .unwrap();
        assert!(packed(&rootfs) == packed(&layer), "{name}: the files differ");

        let (_, stage) = dockerfile.split_once(&format!("FROM scratch AS {name}\n")).unwrap();
        let stage = stage.split("\nFROM ").next().unwrap();
        let said = |instruction: &str| {
            let lines = stage.lines().filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
            let lines: Vec<&str> = lines.collect();
            assert_eq!(lines.len(), 1, "{name}: {instruction}");
            lines[0].to_owned()
        };
        assert_eq!(said("COPY"), format!("--from=build /{name} /"));
        let config = &config["config"];
        assert_eq!(config["User"], said("USER"));
        assert_eq!(config["Env"][0], said("ENV"));
        assert_eq!(config["Entrypoint"].to_string(), said("ENTRYPOINT"));
        assert_eq!(stage.lines().filter(|line| !line.is_empty()).count(), 4, "{name}: not compared\n{stage}");
    }
}
