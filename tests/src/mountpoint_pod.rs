//! What runs in a Mountpoint Pod, without Kubernetes around it: the mounter as an unprivileged user, a folder shared
//! with it, and the node's part played by the test.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Parser as _;
use mounter::channel::{hand_over, listens};
use mounter::order::Order;
use mounter::reply::{Refused, Reply, Serving};
use mounter::{EXIT, SOCKET};
use node::place::{Place, Root};
use node::request::Publish;
use node::{credentials, kernel};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use service::csi::volume_capability::access_mode::Mode;
use service::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use service::csi::{NodePublishVolumeRequest, VolumeCapability};
use service::keys::Keys;
use tempfile::TempDir;
use xtask::s3::{Account, Client, ENDPOINT, REGION};

use crate::{cluster, within};

const NAME: &str = "mp-under-test";
/// The user and group of Mountpoint Pods.
pub const USER: u32 = 1000;
/// For anything that touches a served path or waits for a process; generous, as the machine may be busy.
pub const LIMIT: Duration = Duration::from_mins(1);

/// One Mountpoint Pod. Its end takes the mounts and processes along.
pub struct MountpointPod {
    pub comm: TempDir,
    pub process: Child,
    log: PathBuf,
    pub termination_log: PathBuf,
}

impl MountpointPod {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these arguments for the mounter.
    pub fn start_with(arguments: &[&str]) -> Self {
        let pod = Self::start_in(prepared(tempfile::tempdir_in("/run").unwrap()), arguments);
        pod.listening();
        pod
    }

    /// In this folder, which is not there yet. Does not wait.
    pub fn start_at(comm: &Path) -> Self {
        let parent = comm.parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        let name = comm.file_name().unwrap();
        let comm = tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(parent).unwrap();
        Self::start_in(prepared(comm), &[])
    }

    fn start_in(comm: TempDir, arguments: &[&str]) -> Self {
        let log = comm.path().join("log");
        let termination_log = comm.path().join("termination-log");
        File::create(&termination_log).unwrap();
        fs::set_permissions(&termination_log, fs::Permissions::from_mode(0o666)).unwrap();
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let process = Command::new(programs().join("s3-csi-mounter"))
            .arg("--comm")
            .arg(comm.path())
            .arg("--termination-log")
            .arg(&termination_log)
            .args(arguments)
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { comm, process, log, termination_log }
    }

    /// The same pod after its container was started anew.
    #[must_use]
    pub fn restart(mut self) -> Self {
        let _ = self.process.kill();
        self.process.wait().unwrap();
        let comm = std::mem::replace(&mut self.comm, tempfile::tempdir_in("/run").unwrap());
        drop(self);
        Self::start_in(comm, &[])
    }

    pub fn listening(&self) {
        eventually("the mounter listens", || listens(self.comm.path()));
    }

    pub fn socket(&self) -> PathBuf {
        self.comm.path().join(SOCKET)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Provides the account's keys, with the node's own code.
    pub fn provide(&self, access_key: &str, secret_key: &str) {
        let keys = Keys {
            access_key_id: access_key.to_owned(),
            secret_access_key: secret_key.to_owned(),
            session_token: None,
        };
        let comm = OwnedFd::from(File::open(self.comm.path()).unwrap());
        credentials::provide(&comm, NAME, &keys).unwrap();
    }

    /// The file that they are in.
    pub fn keys(&self) -> PathBuf {
        let [(_, file), _] = credentials::environment(NAME);
        self.comm.path().join(file)
    }

    /// An order for the bucket with the account's keys: the one that the node makes of a volume without options, and
    /// these arguments besides. They get past the node, which refuses or ignores some of them, because what the mount
    /// process makes of them is tested here.
    pub fn order(&self, account: Account, bucket: &str, arguments: &[&str]) -> Order {
        self.provide(account.access_key, account.secret_key);
        let endpoint = [format!("--endpoint-url={ENDPOINT}"), format!("--region={REGION}")];
        let flags = ["s3-csi-node", "--node-name=node"].map(str::to_owned).into_iter().chain(endpoint);
        let publish = volume_without_options(bucket);
        // The node gives one of them where the volume has not the other.
        let instead = |argument: &String| argument != "--allow-root" || !arguments.contains(&"--allow-other");
        let of_node = publish.arguments.render().into_iter().filter(instead);
        let mut environment = node::flags::Flags::parse_from(flags).environment();
        environment.extend(publish.environment);
        environment.extend(credentials::environment(NAME));
        Order {
            volume_id: publish.volume_id,
            bucket: publish.volume.bucket,
            arguments: of_node.chain(arguments.iter().map(|argument| (*argument).to_owned())).collect(),
            environment,
        }
    }

    /// The node's part: mounts and hands over.
    pub fn mount(&self, order: &Order) -> Result<Served, Refused> {
        let (point, device) = mount_fuse(false);
        match hand_over(self.comm.path(), order, device.as_fd(), Instant::now() + LIMIT).unwrap() {
            Reply::Serving(facts) => Ok(Served { point, facts }),
            Reply::Refused(refused) => {
                unmount(point.path(), UnmountFlags::DETACH).unwrap();
                Err(refused)
            }
        }
    }

    /// A mount of the bucket that must work.
    pub fn serve(&self, account: Account, bucket: &str, arguments: &[&str]) -> Served {
        self.mount(&self.order(account, bucket, arguments)).unwrap_or_else(|refused| {
            panic!("{refused}\n{}", self.log());
        })
    }

    /// A mount of the account's bucket at this place, with the node's own code; returns the process that serves it.
    pub fn serve_at(&self, account: Account, bucket: &str, place: &Place) -> Pid {
        let device = kernel::mount_source(place, false).unwrap();
        let order = self.order(account, bucket, &[]);
        match hand_over(self.comm.path(), &order, device.as_fd(), Instant::now() + LIMIT).unwrap() {
            Reply::Serving(facts) => i32::try_from(facts.pid).ok().and_then(Pid::from_raw).unwrap(),
            Reply::Refused(refused) => panic!("{refused}"),
        }
    }

    /// Asks for the end, as the node does before it unmounts.
    pub fn ask_to_exit(&self) {
        File::create(self.comm.path().join(EXIT)).unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        let process = &mut self.process;
        let mut status = None;
        eventually("the mounter ends", || {
            status = process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for MountpointPod {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("the mounter's last lines:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As the node understands it.
fn volume_without_options(bucket: &str) -> Publish {
    const KUBELET: &str = "/var/lib/kubelet";
    let request = NodePublishVolumeRequest {
        volume_id: format!("volume-of-{bucket}"),
        target_path: format!("{KUBELET}/pods/uid/volumes/kubernetes.io~csi/volume/mount"),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: [("bucketName".to_owned(), bucket.to_owned())].into(),
        ..NodePublishVolumeRequest::default()
    };
    Publish::parse(request, Path::new(KUBELET)).unwrap()
}

/// As kubelet makes the folder for a pod with an fsGroup.
fn prepared(comm: TempDir) -> TempDir {
    chown(comm.path(), Some(0), Some(USER)).unwrap();
    fs::set_permissions(comm.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    comm
}

/// A bucket that is being served.
pub struct Served {
    point: TempDir,
    pub facts: Serving,
}

impl Served {
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// Touches the mount on a thread with a deadline.
    pub fn touch<T: Send + 'static>(&self, name: &str, act: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let path = self.path(name);
        within(&format!("{}", path.display()), LIMIT, move || act(&path))
    }

    pub fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        self.touch(name, |path| fs::read(path))
    }

    pub fn write(&self, name: &str, content: impl Into<Vec<u8>>) -> std::io::Result<()> {
        let content = content.into();
        self.touch(name, move |path| fs::write(path, content))
    }

    /// The names in a folder, sorted.
    pub fn list(&self, name: &str) -> std::io::Result<Vec<String>> {
        self.touch(name, |path| {
            let entries = fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
            let mut names: Vec<String> =
                entries.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            Ok(names)
        })
    }

    /// Ends the process that serves, as the kernel does when memory is short.
    pub fn kill(&self) {
        let pid = i32::try_from(self.facts.pid).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }

    pub fn unmount(&self) {
        unmount(self.point.path(), UnmountFlags::empty()).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Without waiting for anybody who still holds it; it may be unmounted already.
        let _ = unmount(self.point.path(), UnmountFlags::DETACH);
    }
}

/// Mounts the device on a folder of its own, with the node's own code.
pub fn mount_fuse(read_only: bool) -> (TempDir, OwnedFd) {
    cluster();
    let point = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(point.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = Root::open(Path::new("/run")).unwrap().place(point.path()).unwrap();
    let device = kernel::mount_source(&place, read_only).unwrap();
    (point, device)
}

/// A bucket of the account's own, made for one test.
pub fn bucket(account: Account, name: &str) -> Client {
    cluster();
    let client = Client::new(ENDPOINT, account).unwrap();
    client.create_bucket(name).unwrap();
    client
}

/// Copies of the programs where an unprivileged user can start them.
fn programs() -> &'static Path {
    static COPIES: OnceLock<TempDir> = OnceLock::new();
    let copies = COPIES.get_or_init(|| {
        let built = PathBuf::from(std::env::var_os("S3_CSI_PROGRAMS").expect("started by: cargo xtask test"));
        let folder = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for program in ["s3-csi-mounter", "s3-csi-mountpoint"] {
            fs::copy(built.join(program), folder.path().join(program)).unwrap();
        }
        folder
    });
    copies.path()
}

/// Looks again and again until it is so.
pub fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !look() {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Of an environment, with one variable set to something else.
pub fn with(order: Order, name: &str, value: &str) -> Order {
    let environment: BTreeMap<_, _> =
        order.environment.into_iter().chain([(name.to_owned(), value.to_owned())]).collect();
    Order { environment, ..order }
}
