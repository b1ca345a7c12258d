//! A Mountpoint Pod without Kubernetes: the mounter as an unprivileged user and a folder shared with it. The test does the
//! node's part. Long, because that is all that the kubelet and the node service do for such a pod.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Parser as _;
use contract::authentication::AuthenticationSource;
use contract::keys::Keys;
use mounter::credentials::Credentials;
use mounter::handover::client::{hand_over, listens};
use mounter::handover::{MountReply, MountRequest, Purpose, Refused};
use mounter::{EXIT, SOCKET};
use node::context::Installation;
use node::credentials::MountCredentials;
use node::publish::source::mount_request;
use node::request::PublishRequest;
use node::safe_path::{Root, SafePath};
use node::{credentials, kernel};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use service::csi::volume_capability::access_mode::Mode;
use service::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use service::csi::{NodePublishVolumeRequest, VolumeCapability};
use tempfile::TempDir;
use xtask::s3::{ALICE, Account, Client, ENDPOINT, REGION};

use crate::cluster;
pub use crate::served::{LIMIT, Served};

const NAME: &str = "mp-under-test";
/// What the node says for the version of an API server that does not answer.
const KUBERNETES: &str = "unknown";
/// The user and group of Mountpoint Pods.
pub const USER: u32 = 1000;

/// When it is dropped, its processes and mounts end, too.
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
        let pod = Self::start_in(prepared(tempfile::tempdir_in("/run").unwrap(), USER), arguments);
        pod.listening();
        pod
    }

    /// As this user and group.
    pub fn start_as(user: u32) -> Self {
        let comm = prepared(tempfile::tempdir_in("/run").unwrap(), user);
        let pod = Self::start_programs_in(programs(), comm, &[], user);
        pod.listening();
        pod
    }

    /// In a folder in memory of that many bytes.
    pub fn start_in_memory(bytes: u64) -> Self {
        let comm = tempfile::tempdir_in("/run").unwrap();
        let size = CString::new(format!("size={bytes}")).unwrap();
        mount("tmpfs", comm.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())).unwrap();
        let pod = Self::start_in(prepared(comm, USER), &[]);
        pod.listening();
        pod
    }

    /// In this folder, which does not exist yet. Does not wait.
    pub fn start_at(comm: &Path) -> Self {
        Self::start_programs_at(programs(), comm)
    }

    /// The same with other programs.
    pub fn start_programs_at(programs: &Path, comm: &Path) -> Self {
        let parent = comm.parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        let name = comm.file_name().unwrap();
        let comm = tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(parent).unwrap();
        Self::start_programs_in(programs, prepared(comm, USER), &[], USER)
    }

    fn start_in(comm: TempDir, arguments: &[&str]) -> Self {
        Self::start_programs_in(programs(), comm, arguments, USER)
    }

    fn start_programs_in(programs: &Path, comm: TempDir, arguments: &[&str], user: u32) -> Self {
        let log = comm.path().join("log");
        let termination_log = comm.path().join("termination-log");
        File::create(&termination_log).unwrap();
        fs::set_permissions(&termination_log, fs::Permissions::from_mode(0o666)).unwrap();
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let process = Command::new(programs.join("s3-csi-mounter"))
            .arg("--comm")
            .arg(comm.path())
            .arg("--termination-log")
            .arg(&termination_log)
            .args(arguments)
            .uid(user)
            .gid(user)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { comm, process, log, termination_log }
    }

    /// The same pod after its container was restarted.
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

    /// Nothing if its folder is gone.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for it: what the mount process says reaches the log by way of the mounter.
    pub fn logs(&self, words: &str) {
        eventually(&format!("the log contains `{words}`"), || self.log().contains(words));
    }

    /// Provides the account's keys, with the node's own code.
    pub fn provide(&self, access_key: &str, secret_key: &str) {
        let keys = Keys {
            access_key_id: access_key.to_owned(),
            secret_access_key: secret_key.into(),
            session_token: None,
            expires: None,
        };
        let comm = OwnedFd::from(File::open(self.comm.path()).unwrap());
        credentials::write_static_keys(&comm, NAME, &keys).unwrap();
    }

    /// The file that they are in.
    pub fn keys(&self) -> PathBuf {
        let (_, file) = credentials::static_keys(NAME).variables().next().unwrap();
        self.comm.path().join(file)
    }

    /// A mount request for the bucket with the account's keys: the one that the node makes of a volume without options, and
    /// these arguments besides. They get past the node, which refuses or ignores some of them, because what the mount
    /// process makes of them is tested here.
    pub fn request(&self, account: Account, bucket: &str, arguments: &[&str]) -> MountRequest {
        self.provide(account.access_key, account.secret_key);
        let endpoint = [format!("--endpoint-url={ENDPOINT}"), format!("--region={REGION}")];
        let flags = ["s3-csi-node", "--node-name=node"].map(str::to_owned).into_iter().chain(endpoint);
        let installation = Installation::of(&node::flags::Flags::parse_from(flags));
        let credentials = MountCredentials {
            credentials: credentials::static_keys(NAME),
            source: AuthenticationSource::Driver,
        };
        let publish = volume_without_options(bucket);
        let mut request =
            mount_request(&installation, &publish, None, &credentials, KUBERNETES, Purpose::Mount);
        request.arguments.retain(|argument| !arguments.iter().any(|given| replaces(given, argument)));
        request.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        request
    }

    /// The same with a token for an agent instead of keys.
    pub fn request_at(&self, agent: &str, token: &str, bucket: &str) -> MountRequest {
        let comm = OwnedFd::from(File::open(self.comm.path()).unwrap());
        credentials::write_token(&comm, NAME, token).unwrap();
        let mut request = self.request(ALICE, bucket, &[]);
        for (name, _) in credentials::static_keys(NAME).variables() {
            request.environment.remove(&name);
        }
        let token_file = credentials::token_file(NAME);
        request
            .environment
            .extend(Credentials::PodIdentity { uri: agent.to_owned(), token_file }.variables());
        request
    }

    /// The node's part: mounts and hands over.
    pub fn mount(&self, request: &MountRequest) -> Result<Served, Refused> {
        let (point, device) = mount_fuse(false);
        match hand_over(self.comm.path(), request, device.as_fd(), Instant::now() + LIMIT).unwrap() {
            MountReply::Serving(facts) => {
                let served = Served { point, facts };
                kernel::set_read_ahead(served.device());
                Ok(served)
            }
            MountReply::Refused(refused) => {
                unmount(point.path(), UnmountFlags::DETACH).unwrap();
                Err(refused)
            }
            MountReply::Left => panic!("it was not asked to leave"),
        }
    }

    /// A mount of the bucket that must work.
    pub fn serve(&self, account: Account, bucket: &str, arguments: &[&str]) -> Served {
        self.mount(&self.request(account, bucket, arguments)).unwrap_or_else(|refused| {
            panic!("{refused}\n{}", self.log());
        })
    }

    /// A mount of the account's bucket at this place, with the node's own code; returns the process that serves it.
    pub fn serve_at(&self, account: Account, bucket: &str, place: &SafePath) -> Pid {
        let device = kernel::mount_source(place, false).unwrap();
        let request = self.request(account, bucket, &[]);
        match hand_over(self.comm.path(), &request, device.as_fd(), Instant::now() + LIMIT).unwrap() {
            MountReply::Serving(facts) => i32::try_from(facts.pid).ok().and_then(Pid::from_raw).unwrap(),
            reply => panic!("{reply:?}"),
        }
    }

    /// The process that serves now, if there is one.
    pub fn mount_process(&self) -> Option<Pid> {
        let mounter = self.process.id();
        let children = fs::read_to_string(format!("/proc/{mounter}/task/{mounter}/children")).ok()?;
        Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
    }

    /// Ends all its processes, as the end of its container does.
    pub fn end_container(&mut self) {
        // The mounter first, which would start another one.
        let server = self.mount_process();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        if let Some(server) = server {
            kill_process(server, Signal::KILL).unwrap();
            let end = PathBuf::from(format!("/proc/{}", server.as_raw_nonzero()));
            eventually("the mount process ends", || !end.exists());
        }
    }

    /// As the node does before it unmounts.
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

/// Whether an argument takes the place of the node's.
fn replaces(given: &str, of_node: &str) -> bool {
    let [given, of_node] = [given, of_node].map(|argument| argument.split('=').next());
    // The node gives one of them where the volume has not the other.
    given == of_node || (given == Some("--allow-other") && of_node == Some("--allow-root"))
}

/// As the node understands it.
fn volume_without_options(bucket: &str) -> PublishRequest {
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
    PublishRequest::parse(request, Path::new(KUBELET)).unwrap()
}

/// As kubelet makes the folder for a pod with an fsGroup.
fn prepared(comm: TempDir, group: u32) -> TempDir {
    chown(comm.path(), Some(0), Some(group)).unwrap();
    fs::set_permissions(comm.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    comm
}

/// Mounts the device on a folder of its own, with the node's own code.
pub fn mount_fuse(read_only: bool) -> (TempDir, OwnedFd) {
    cluster();
    let point = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(point.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = Root::open(Path::new("/run")).unwrap().locate(point.path()).unwrap();
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
pub fn programs() -> &'static Path {
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
pub fn with(request: MountRequest, name: &str, value: &str) -> MountRequest {
    let environment: BTreeMap<_, _> =
        request.environment.into_iter().chain([(name.to_owned(), value.to_owned())]).collect();
    MountRequest { environment, ..request }
}
