//! Programs that people run on volumes: what they write is the same as on a disk.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use s3_csi_tests::mountpoint_pod::{LIMIT, MountpointPod, bucket, eventually, with};
use s3_csi_tests::relay::Relay;
use s3_csi_tests::{cluster, within};
use tempfile::TempDir;
use xtask::s3::ALICE;

use crate::files::served;

/// Runs a script with two arguments: a path on the mount, and a folder on the disk.
fn run(path: PathBuf, folder: &Path, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-ec", script, "sh"]).arg(path).arg(folder).stdin(Stdio::null());
    within(script, LIMIT * 3, move || shell.output().unwrap())
}

fn sorted(content: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(content).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Each script runs twice: with a file on the mount, and with one on the disk.
#[test]
fn programs_write_what_they_write_on_a_disk() {
    let (client, _pod, served) = served("programs", &[]);
    for (name, prepare, script) in [
        ("dd", "head -c 3000000 /dev/urandom > in", "dd if=in of=\"$1\" bs=64k status=none"),
        ("tar", "mkdir d; seq 100000 > d/numbers", "tar c d > \"$1\""),
        (
            "fifty",
            "for i in $(seq 50); do echo \"/bin/echo line $i >&$((i % 2 + 1))\"; done > script.sh",
            "sh script.sh > \"$1\" 2>&1",
        ),
        (
            "make",
            "printf 'all: a b c d e f\\n%%:\\n\\t@/bin/echo begin $@; /bin/echo end $@\\n' > Makefile",
            "make -s -j4 > \"$1\"",
        ),
        (
            "git",
            "git init -q r; cd r; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m message",
            "git -C r bundle create -q - --all > \"$1\"",
        ),
        (
            "sqlite3",
            "sqlite3 db 'create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000) insert into t select i from n'",
            "sqlite3 db .dump > \"$1\"",
        ),
        (
            "python",
            "printf 'import subprocess, sys\\nwith open(sys.argv[1], \"w\") as f:\\n for i in range(10):\\n  subprocess.run([\"/bin/echo\", str(i)], stdout=f, check=True)\\n' > p.py",
            "python3 p.py \"$1\"",
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let prepare = format!("cd \"$2\"; {prepare}");
        let script = format!("cd \"$2\"; {script}");
        let prepared = run(PathBuf::new(), folder.path(), &prepare);
        assert!(prepared.status.success(), "{name}: {prepared:?}");
        for path in [served.path(name), folder.path().join("expected")] {
            let output = run(path, folder.path(), &script);
            assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        }
        let expected = fs::read(folder.path().join("expected")).unwrap();
        eventually("all programs have closed it", || {
            let stored = client.get("programs", name).unwrap();
            // `make` runs its commands in any order.
            stored == expected || (name == "make" && sorted(&stored) == sorted(&expected))
        });
        assert!(!expected.is_empty(), "{name}");
    }
}

/// Programs that open a file on one thread, write it on another, and wait for a byte before they close it on a third: their command
/// lines, without the file.
fn threads(folder: &Path) -> [(&'static str, Vec<PathBuf>); 2] {
    let (go, java) = (folder.join("threads.go"), folder.join("Threads.java"));
    fs::write(&go, include_str!("threads.go")).unwrap();
    fs::write(&java, include_str!("Threads.java")).unwrap();
    let (mut build, program) = (Command::new("go"), folder.join("threads"));
    build.args(["build", "-trimpath", "-o"]).arg(&program).arg(&go).current_dir(folder);
    build.env("CGO_ENABLED", "0").env("GOCACHE", cluster().cache().go().join("build"));
    let output = build.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    [("go", vec![program]), ("java", vec!["java".into(), java])]
}

fn start(program: &[PathBuf], file: PathBuf) -> Child {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).arg(file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn close(mut program: Child) -> Output {
    within("the program", LIMIT * 2, move || {
        program.stdin.take().unwrap().write_all(b"x").unwrap();
        program.wait_with_output().unwrap()
    })
}

#[test]
fn a_file_may_be_opened_written_and_closed_on_different_threads() {
    let client = bucket(ALICE, "threads");
    let folder = TempDir::new().unwrap();
    let relay = Relay::to(Some("s3.test:80"));
    let pod = MountpointPod::start();
    let request = with(pod.request(ALICE, "threads", &[]), "AWS_ENDPOINT_URL", &relay.url());
    let served = pod.mount(&with(request, "AWS_MAX_ATTEMPTS", "2")).unwrap();
    let programs = threads(folder.path());
    for (name, program) in &programs {
        let output = close(start(program, served.path(name)));
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(client.get("threads", name).unwrap(), b"content", "{name}");

        let failed = format!("{name}-failed");
        let running = start(program, served.path(&failed));
        eventually("it has written", || {
            served.touch(&failed, |path| fs::metadata(path).is_ok_and(|it| it.len() == 7))
        });
        relay.cut();
        let output = close(running);
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("close"), "{name}: {output:?}");
        relay.mend();
    }
    assert_eq!(client.objects("threads", "").unwrap(), ["go", "java"]);
}

/// They set modes, owners and times of what they have copied.
#[test]
fn programs_that_keep_attributes_work_when_these_are_ignored() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("folder")).unwrap();
    for name in ["one", "folder/two"] {
        fs::write(source.join(name), name).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(source.join(name), Some(77), Some(77)).unwrap();
        File::options()
            .write(true)
            .open(source.join(name))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
    }
    let (client, _pod, served) = served("ignored", &["--ignore-attribute-changes", "--allow-overwrite"]);
    for (name, script) in [
        ("tar", "mkdir \"$1\"; tar c -C \"$2\"/source . | tar x -C \"$1\""),
        ("cp", "cp -a \"$2\"/source \"$1\""),
        ("rsync", "rsync -a --inplace \"$2\"/source/ \"$1\"/"),
        (
            "touch",
            "cp -r \"$2\"/source \"$1\"; chmod 600 \"$1\"/one; chown 77 \"$1\"/one; touch -d 2001-01-01 \"$1\"/one",
        ),
    ] {
        let output = run(served.path(name), folder.path(), script);
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        for file in ["one", "folder/two"] {
            let key = format!("{name}/{file}");
            assert_eq!(client.get("ignored", &key).unwrap(), file.as_bytes(), "{key}");
            let mode = served.touch(&key, |path| fs::metadata(path).unwrap().permissions().mode());
            assert_eq!(mode & 0o7777, 0o644, "{key}");
        }
    }
    // What a file contains is no attribute.
    let cut = served.touch("cp/one", |path| {
        nix::unistd::close(File::options().write(true).open(path)?).map_err(std::io::Error::from)
    });
    cut.unwrap_err();
    assert_eq!(client.get("ignored", "cp/one").unwrap(), b"one");
}

/// They write another file and rename it.
#[test]
fn programs_that_rename_files_work_where_that_is_allowed() {
    let folder = TempDir::new().unwrap();
    let prepared = "cd \"$2\"; mkdir source; seq 1000 > source/one; seq 2000 > source/two
        git init -q r; cd r; mkdir sub; seq 3000 > file; seq 100 > sub/file; git add .
        git -c user.name=a -c user.email=a@b commit -q -m message";
    assert!(run(PathBuf::new(), folder.path(), prepared).status.success());
    let options = ["--allow-delete", "--allow-overwrite", "--rename-by-copy", "--ignore-attribute-changes"];
    let (client, _pod, served) = served("renaming", &options);
    for (name, script) in [
        (
            "mv",
            "cp \"$2\"/source/one \"$1\"/a; mv \"$1\"/a \"$1\"/b; cp \"$2\"/source/two \"$1\"/c; mv \"$1\"/c \"$1\"/b",
        ),
        ("sed", "cp \"$2\"/source/* \"$1\"; sed -i s/1/x/ \"$1\"/one \"$1\"/two"),
        (
            "rsync",
            "rsync -a \"$2\"/source/ \"$1\"/; seq 5 > \"$2\"/source/one; rsync -a \"$2\"/source/ \"$1\"/",
        ),
        ("bundle", "git -C \"$2\"/r bundle create -q \"$1\"/all --all"),
        (
            "clone",
            "git clone -q --no-hardlinks \"$2\"/r \"$1\"/r; git -c safe.directory=* -C \"$1\"/r fsck --no-progress; rm -rf \"$1\"/r/.git",
        ),
    ] {
        let (on_mount, on_disk) = (served.path(name), folder.path().join(name));
        for root in [&on_mount, &on_disk] {
            let output = run(root.clone(), folder.path(), &format!("mkdir -p \"$1\"; {script}"));
            assert!(output.status.success(), "{name}: {output:?}");
        }
        let same = run(on_mount, &on_disk, "diff -r \"$1\" \"$2\"");
        assert!(same.status.success(), "{name}: {same:?}");
        assert!(!client.objects("renaming", name).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn folders_are_walked_and_copied_as_on_a_disk() {
    let folder = TempDir::new().unwrap();
    let prepared = "cd \"$2\"; mkdir -p source/a/b/c; seq 1000 > source/one; seq 2000 > source/a/b/two; cp /bin/true source/a/run";
    assert!(run(PathBuf::new(), folder.path(), prepared).status.success());
    let (client, _pod, served) = served("walked", &[]);
    let script = "cp -r \"$2\"/source/. \"$1\"; rm -rf \"$2\"/back; cp -r \"$1\" \"$2\"/back; diff -r \"$2\"/source \"$2\"/back
        cd \"$1\"/a/b/..; pwd -P; ls; cd ..; test . -ef \"$1\"; cd a/./b/../..; pwd -P; find . | sort";
    let (on_mount, on_disk) = (served.path("copy"), folder.path().join("copy"));
    let [mount, disk] = [&on_mount, &on_disk].map(|root| {
        let output = run(root.clone(), folder.path(), &format!("mkdir \"$1\"; {script}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().replace(root.to_str().unwrap(), "ROOT")
    });
    assert_eq!(mount, disk);
    assert!(mount.starts_with("ROOT/a\nb\nrun\nROOT\n.\n./a\n"), "{mount}");
    assert_eq!(client.objects("walked", "").unwrap(), ["copy/a/b/two", "copy/a/run", "copy/one"]);
}

/// A directory of a bucket ends with its last object.
#[test]
fn a_tree_is_removed_as_on_a_disk() {
    for (name, options) in [
        ("removed-tree", &["--allow-delete"][..]),
        ("removed-tree-minimal", &["--allow-delete", "--metadata-ttl=minimal"]),
        ("removed-tree-cached", &["--allow-delete", "--metadata-ttl=300"]),
    ] {
        let (client, _pod, served) = served(name, options);
        for key in ["tree/theirs", "tree/a/theirs", "tree/a/b/theirs", "kept/file"] {
            client.put(name, key, b"x").unwrap();
        }
        let script =
            "cd \"$1\"; mkdir -p tree/new/empty tree/new/full; echo x > tree/new/full/file; rm -r tree; ls";
        let output = run(served.path(""), Path::new("/"), script);
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        assert_eq!(output.stdout, b"kept\n", "{name}");
        assert_eq!(client.objects(name, "").unwrap(), ["kept/file"], "{name}");
        // With an object in it, it stays.
        served.touch("kept", |path| fs::remove_dir(path)).unwrap_err();
        assert_eq!(served.read("kept/file").unwrap(), b"x");
        // And with a file in it that is still being written, although its last object is gone.
        let file = served.touch("kept/new", |path| File::create(path)).unwrap();
        client.delete(name, "kept/file").unwrap();
        served.touch("kept", |path| fs::remove_dir(path)).unwrap_err();
        let closed = within("a close", LIMIT, move || (&file).write_all(b"y").and_then(|()| file.sync_all()));
        closed.unwrap();
        assert_eq!(client.get(name, "kept/new").unwrap(), b"y");
    }
}
