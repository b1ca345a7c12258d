use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::cache::Cache;
use xtask::cluster::{Cluster, Node, Part, State};
use xtask::command::run;

struct Named(Cluster, String);

impl Named {
    fn new(name: &str) -> Self {
        let cluster = Cluster::named(&Cache::open().unwrap(), name);
        // Left by an earlier run that was interrupted.
        cluster.down().unwrap();
        Self(cluster, name.to_owned())
    }

    fn verb(&self, verb: &str) -> Command {
        let mut command = super::xtask();
        command.args(["cluster", verb, "--name", &self.1]);
        if verb == "up" {
            command.args(["--kubernetes", &std::env::var("S3_CSI_KUBERNETES").unwrap()]);
        }
        command
    }

    /// Starts `up` and waits for the line of its output that contains `sign`.
    fn up_until(&self, sign: &str) -> Child {
        let mut up = self.verb("up").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(up.stderr.take().unwrap()).lines();
        let reached = lines.by_ref().any(|line| line.unwrap().contains(sign));
        assert!(reached, "`up` never said `{sign}`");
        // Kept open, because otherwise `up` would die of a broken pipe.
        std::mem::forget(lines);
        up
    }

    /// The PID namespace of the first node, which identifies its processes.
    fn namespace(&self) -> Option<std::path::PathBuf> {
        self.namespace_of(Node::FIRST)
    }

    fn namespace_of(&self, node: Node) -> Option<std::path::PathBuf> {
        let namespace = format!("/proc/{}/ns/pid", self.0.init_of(node)?);
        // Kept open, because otherwise the kernel may give its number to a pod of another cluster.
        std::mem::forget(fs::File::open(&namespace).ok()?);
        fs::read_link(namespace).ok()
    }

    /// Runs `node stop` or `node start`.
    fn node(&self, verb: &str, node: Node) {
        let mut command = super::xtask();
        run(command.args(["cluster", "node", verb, "--name", &self.1, &node.name()])).unwrap();
    }

    /// Waits for that. What a killed `up` had started ends by itself, when it notices.
    fn leaves_nothing(&self, namespace: Option<&std::path::Path>) {
        const WITHIN: Duration = Duration::from_mins(1);
        let until = Instant::now() + WITHIN;
        while !self.leftovers(namespace).is_empty() {
            assert!(Instant::now() < until, "{:?}", self.leftovers(namespace));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Everything that is left of the cluster on this machine.
    fn leftovers(&self, namespace: Option<&std::path::Path>) -> Vec<String> {
        let mut found = Vec::new();
        let dir = self.0.dir().to_str().unwrap().to_owned();
        for process in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let path = process.path();
            let inside = fs::read_link(path.join("ns/pid")).ok();
            if namespace.is_some() && inside.as_deref() == namespace {
                found.push(format!("process {}", path.display()));
            }
            if fs::read_to_string(path.join("mountinfo")).unwrap_or_default().contains(&dir) {
                found.push(format!("a mount seen by {}", path.display()));
            }
            if fs::read_to_string(path.join("cmdline")).unwrap_or_default().contains(&dir) {
                found.push(format!("command line of {}", path.display()));
            }
        }
        found.extend(self.0.cgroups().unwrap().iter().map(|folder| format!("cgroup {}", folder.display())));
        if self.0.dir().exists() {
            found.push(format!("folder {dir}"));
        }
        found
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            xtask::test::evidence::keep(&self.0, &self.1);
        }
        let _ = self.0.down();
    }
}

#[test]
fn an_up_that_is_killed_at_any_stage_is_cleaned_by_down() {
    for (number, sign) in
        ["images", "namespaces", "containerd", "S3 server", "API server"].into_iter().enumerate()
    {
        let cluster = Named::new(&format!("killed-{number}"));
        let mut up = cluster.up_until(sign);
        up.kill().unwrap();
        up.wait().unwrap();
        let namespace = cluster.namespace();
        if sign != "images" {
            assert!(namespace.is_some(), "there is a node to clean away after `{sign}`");
        }
        run(&mut cluster.verb("down")).unwrap();
        cluster.leaves_nothing(namespace.as_deref());
    }
}

#[test]
fn an_up_that_is_interrupted_is_completed_by_the_next() {
    let cluster = Named::new("interrupted");
    let mut up = cluster.up_until("namespaces");
    let pid = rustix::process::Pid::from_child(&up);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    up.wait().unwrap();
    run(&mut cluster.verb("up")).unwrap();
    assert!(matches!(cluster.0.state().unwrap(), State::Up { .. }));
    let init = cluster.0.init_process();
    run(&mut cluster.verb("up")).unwrap();
    assert_eq!(cluster.0.init_process(), init, "`up` of a cluster that is up leaves it alone");
    cluster.0.stop(Part::Scheduler).unwrap();
    assert_eq!(cluster.0.state().unwrap(), State::Broken);
    cluster.0.start(Part::Scheduler).unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    while cluster.0.state().unwrap() == State::Broken {
        assert!(Instant::now() < until, "a component that runs again is not missed");
        std::thread::sleep(Duration::from_millis(50));
    }
    let namespace = cluster.namespace();
    run(&mut cluster.verb("down")).unwrap();
    cluster.leaves_nothing(namespace.as_deref());
    run(&mut cluster.verb("down")).unwrap();
}

#[test]
fn of_several_nodes_one_that_is_off_has_no_process_and_down_leaves_nothing_of_any() {
    let cluster = Named::new("several");
    run(cluster.verb("up").args(["--nodes", "3"])).unwrap();
    let nodes = cluster.0.nodes().unwrap();
    let namespaces: Vec<_> = nodes.iter().map(|node| cluster.namespace_of(*node)).collect();
    assert!(namespaces.iter().all(Option::is_some));
    let in_namespace = |number: usize| {
        let found = cluster.leftovers(namespaces[number].as_deref());
        found.into_iter().filter(|what| what.starts_with("process")).count()
    };
    assert!(in_namespace(1) > 0);
    cluster.node("stop", nodes[1]);
    assert_eq!(in_namespace(1), 0);
    assert!(cluster.0.disk(nodes[1]).join("kubelet").exists(), "its disk stays");
    cluster.node("start", nodes[1]);
    assert_ne!(cluster.namespace_of(nodes[1]), None);
    cluster.node("stop", nodes[2]);
    run(&mut cluster.verb("down")).unwrap();
    for namespace in &namespaces {
        assert_eq!(cluster.leftovers(namespace.as_deref()), [""; 0]);
    }
}

#[test]
fn a_part_that_cannot_start_shows_its_last_words_and_its_log() {
    let cluster = Named::new("faulty");
    let folder = tempfile::tempdir().unwrap();
    let fake = folder.path().join("containerd");
    fs::write(&fake, "#!/bin/sh\necho broken on purpose\nexit 7\n").unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut up = cluster.verb("up").env("PATH", path).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    up.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!up.wait().unwrap().success());
    assert!(said.contains("containerd ended with exit status: 7"), "{said}");
    assert!(said.contains("broken on purpose"), "{said}");
    assert!(said.contains(cluster.0.log("containerd").to_str().unwrap()), "{said}");
    run(&mut cluster.verb("down")).unwrap();
    assert_eq!(cluster.leftovers(None), [""; 0]);
}
