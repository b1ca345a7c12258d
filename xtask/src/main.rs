//! `cargo xtask …`: the commands for building, running, testing and measuring the project. Long, because every command is declared
//! with its arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use xtask::architecture::Architecture;
use xtask::cache::{Cache, checkout};
use xtask::cluster::{self, Boot, Cluster, Node, Plan, State};
use xtask::command::relay;
use xtask::programs::Kubernetes;
use xtask::progress::step;
use xtask::s3::{self, Account};
use xtask::sources::Sources;
use xtask::{
    bench, cargo, conformance, debian, demo, driver, ground, image, krew, sbom, test, testpod, witness,
};

/// Build, run, test and measure the project on a real Kubernetes node.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Xtask {
    /// Start a cluster, install the driver and mount a bucket in two pods.
    Demo(Release),
    /// Run all tests, or one suite.
    Test(test::Wanted),
    /// Run Kubernetes' own storage suite and write its result to docs/conformance.md.
    Conformance(conformance::Wanted),
    /// Run a benchmark; the figures are also written to target/bench/NAME.json.
    Bench(bench::Wanted),
    /// Manage the Kubernetes node that the demo and the tests use.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Use the S3 server of a running cluster.
    S3(S3Arguments),
    /// Build the release programs and the images.
    Image(ImageArguments),
    /// Build the kubectl plugin without shared libraries.
    Plugin {
        /// Write it into this folder, with the licence, as an archive for krew.
        #[arg(long)]
        archive: Option<PathBuf>,
    },
    /// Print the manifest by which krew installs the kubectl plugin.
    Krew {
        /// Where the archives will be, without their names.
        #[arg(long)]
        url: String,
        /// What `plugin --archive` wrote on a machine of each architecture.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Print the chart as a plain manifest, for clusters without Helm.
    Manifest {
        #[command(flatten)]
        release: Release,
        /// Value of the chart, such as `s3.endpointUrl=https://s3.example.com`; can be repeated.
        #[arg(long = "set")]
        values: Vec<String>,
    },
    /// Print the crates of the shipped programs with their licences, as `CycloneDX`.
    Sbom {
        /// Folder with `/var/lib/dpkg/status.d` of an image, whose Debian packages are listed, too; can be repeated.
        #[arg(long)]
        packages: Vec<PathBuf>,
    },
    /// Regenerate the generated files that are committed.
    Gen,
    #[command(name = cluster::INIT, hide = true)]
    Init { dir: PathBuf, node: Option<String> },
    #[command(hide = true)]
    Testpod { bucket: String, key: String },
    #[command(hide = true)]
    Witness { role: witness::Role, folder: PathBuf, record: PathBuf },
}

#[derive(Args)]
struct Release {
    /// Kubernetes release to run.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
}

#[derive(Args)]
struct Name {
    /// Name of the cluster; each suite has its own, such as `test-cluster`.
    #[arg(long, default_value = cluster::DEFAULT_NAME, value_parser = cluster::name)]
    name: String,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Start the cluster; does nothing if it is running.
    Up {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        release: Release,
        /// Number of nodes; the first runs the control plane.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(cluster::MOST_NODES)))]
        nodes: u8,
    },
    /// Stop the cluster and remove everything it created.
    Down {
        #[command(flatten)]
        name: Name,
        /// All clusters of the cache, including those of interrupted tests and benchmarks.
        #[arg(long)]
        all: bool,
    },
    /// Show whether the cluster is running.
    Status {
        #[command(flatten)]
        name: Name,
    },
    /// Run kubectl as cluster administrator.
    Kubectl {
        #[command(flatten)]
        name: Name,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Power a node other than the first off or on, or drain it.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Run a command on a node.
    Exec {
        #[command(flatten)]
        name: Name,
        /// Name of the node (default: the first).
        #[arg(long)]
        node: Option<String>,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
}

#[derive(Subcommand)]
enum NodeCommand {
    /// Simulate a power cut: kill all processes of the node at once and keep its disk.
    Stop {
        #[command(flatten)]
        name: Name,
        node: String,
    },
    /// Start the node again and wait until it is ready.
    Start {
        #[command(flatten)]
        name: Name,
        node: String,
        /// Start with an empty disk, like another machine of the same name.
        #[arg(long)]
        as_new: bool,
        /// Taint (`KEY:EFFECT`) from the moment the node joins; no effect on a node that is already registered.
        #[arg(long)]
        taint: Vec<String>,
    },
    /// Cordon the node and evict its workloads; `kubectl uncordon` undoes the cordon.
    Drain {
        #[command(flatten)]
        name: Name,
        node: String,
    },
}

impl NodeCommand {
    fn name(&self) -> &str {
        let (Self::Stop { name, .. } | Self::Start { name, .. } | Self::Drain { name, .. }) = self;
        &name.name
    }
}

#[derive(Args)]
struct S3Arguments {
    #[command(flatten)]
    name: Name,
    /// Account to use: root, alice or bob.
    #[arg(long = "as", default_value = "alice")]
    account: String,
    #[command(subcommand)]
    verb: S3Verb,
}

#[derive(Subcommand)]
enum S3Verb {
    /// List buckets, or the objects of a bucket.
    Ls { bucket: Option<String> },
    /// Create a bucket.
    Mb { bucket: String },
    /// Delete an empty bucket.
    Rb { bucket: String },
    /// Store a file (or `-`, standard input) as an object.
    Put { file: PathBuf, bucket: String, key: String },
    /// Print an object.
    Get { bucket: String, key: String },
    /// Delete an object.
    Rm { bucket: String, key: String },
}

#[derive(Args)]
struct ImageArguments {
    /// Only the images that are shipped, for this architecture, whose programs are cross-compiled if need be; can be repeated for
    /// one archive with both.
    #[arg(long = "arch", value_enum)]
    architectures: Vec<Architecture>,
    /// Only write the files of this image into the folder `--rootfs`, for the Dockerfile.
    #[arg(long, requires = "rootfs")]
    only: Option<String>,
    #[arg(long, requires = "only")]
    rootfs: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Xtask::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Xtask) -> Result<ExitCode> {
    // These run where there is no cache.
    match &command {
        Xtask::Init { dir, node } => {
            return cluster::run_init(dir, node.as_deref()).map(|()| ExitCode::SUCCESS);
        }
        Xtask::Testpod { bucket, key } => return testpod::get(bucket, key).map(|()| ExitCode::SUCCESS),
        Xtask::Witness { role, folder, record } => {
            return witness::run(*role, folder, record).map(|()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    let cache = Cache::open()?;
    let sources = Sources::adopt(&cache.target(), checkout())?;
    let code = run_with(&cache, command);
    sources.release()?;
    code
}

fn run_with(cache: &Cache, command: Xtask) -> Result<ExitCode> {
    match command {
        Xtask::Demo(release) => demo::run(cache, release.kubernetes)?,
        Xtask::Test(wanted) => return test::run(cache, &wanted),
        Xtask::Conformance(wanted) => return conformance::run(cache, &wanted),
        Xtask::Bench(wanted) => bench::run(cache, &wanted)?,
        Xtask::Cluster(command) => return run_cluster(cache, command),
        Xtask::S3(arguments) => return run_s3(cache, arguments),
        Xtask::Image(ImageArguments { only: Some(name), rootfs: Some(folder), architectures }) => {
            image::platforms::unpack(cache, &name, &architectures, &folder)?;
        }
        Xtask::Plugin { archive: None } => println!("{}", cargo::plugin(cache)?.display()),
        Xtask::Plugin { archive: Some(folder) } => println!("{}", krew::archive(cache, &folder)?.display()),
        Xtask::Krew { url, archives } => print!("{}", krew::manifest(&url, &archives)?),
        Xtask::Manifest { release, values } => {
            print!("{}", driver::manifest(cache, release.kubernetes, &values)?);
        }
        Xtask::Sbom { packages } => print!("{}", sbom::of_images(cache, &packages)?),
        Xtask::Gen => test::generate(cache)?,
        Xtask::Image(ImageArguments { architectures, .. }) => {
            debian::ensure_packages()?;
            let images = match &architectures[..] {
                [] => image::build_all(cache)?,
                architectures => image::platforms::build(cache, architectures)?,
            };
            for image in images {
                println!("{} {}\n    {}", image.reference, image.digest, image.archive.display());
            }
        }
        Xtask::Init { .. } | Xtask::Testpod { .. } | Xtask::Witness { .. } => unreachable!("handled above"),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_cluster(cache: &Cache, command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Up { name, release, nodes } => {
            ground::prepare(cache, release.kubernetes)?;
            let plan = Plan { kubernetes: release.kubernetes, nodes, ..Plan::default() };
            step("cluster up", || Cluster::named(cache, &name.name).up(plan))?;
        }
        ClusterCommand::Down { name, all } => {
            let names = if all { Cluster::names(cache)? } else { vec![name.name] };
            for name in names {
                step(&format!("cluster `{name}` down"), || Cluster::named(cache, &name).down())?;
            }
        }
        ClusterCommand::Status { name } => show_state(&Cluster::named(cache, &name.name))?,
        ClusterCommand::Kubectl { name, arguments } => {
            return relay(Cluster::named(cache, &name.name).kubectl()?.args(arguments));
        }
        ClusterCommand::Exec { name, node, command } => {
            let cluster = Cluster::named(cache, &name.name);
            let node = node.map_or(Ok(Node::FIRST), |node| cluster.node(&node))?;
            return relay(cluster.command_on(node, &command[0])?.args(&command[1..]));
        }
        ClusterCommand::Node(command) => return run_node(cache, command),
    }
    Ok(ExitCode::SUCCESS)
}

fn show_state(cluster: &Cluster) -> Result<()> {
    match cluster.state()? {
        State::Down => println!("down"),
        State::Broken => println!("broken: restart it with `cluster up`, or remove it with `cluster down`"),
        State::Up { plan, processes, resident_mb } => {
            println!("up: {plan}, {processes} processes, {resident_mb} MB resident");
            for node in cluster.nodes()?.into_iter().filter(|node| cluster.init_of(*node).is_none()) {
                println!("{} is off", node.name());
            }
        }
    }
    Ok(())
}

fn run_node(cache: &Cache, command: NodeCommand) -> Result<ExitCode> {
    let cluster = Cluster::named(cache, command.name());
    if cluster.init_process() != Some(1) {
        // Other nodes are created inside the first node, so run the same command there.
        return relay(cluster.command(std::env::current_exe()?)?.args(std::env::args_os().skip(1)));
    }
    match command {
        NodeCommand::Stop { node, .. } => {
            step(&format!("{node} off"), || cluster.stop_node(cluster.node(&node)?))?;
        }
        NodeCommand::Start { node, as_new, taint, .. } => {
            let boot = Boot { as_new, taints: taint };
            step(&format!("{node} on"), || cluster.start_node(cluster.node(&node)?, &boot))?;
        }
        NodeCommand::Drain { node, .. } => {
            step(&format!("{node} drained"), || cluster.drain_node(cluster.node(&node)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_s3(cache: &Cache, arguments: S3Arguments) -> Result<ExitCode> {
    let cluster = Cluster::named(cache, &arguments.name.name);
    if cluster.init_process() != Some(1) {
        // The server is in the node's network, so run the same command there.
        return relay(cluster.command(std::env::current_exe()?)?.args(std::env::args_os().skip(1)));
    }
    let account = Account::named(&arguments.account)
        .with_context(|| format!("unknown account `{}`: use root, alice or bob", arguments.account))?;
    let client = s3::Client::new(s3::ENDPOINT, account)?;
    match arguments.verb {
        S3Verb::Ls { bucket: None } => client.buckets()?.iter().for_each(|name| println!("{name}")),
        S3Verb::Ls { bucket: Some(bucket) } => {
            client.objects(&bucket, "")?.iter().for_each(|key| println!("{key}"));
        }
        S3Verb::Mb { bucket } => client.create_bucket(&bucket)?,
        S3Verb::Rb { bucket } => client.delete_bucket(&bucket)?,
        S3Verb::Put { file, bucket, key } => {
            let file = if file.as_os_str() == "-" { PathBuf::from("/dev/stdin") } else { file };
            let content = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            client.put(&bucket, &key, &content)?;
        }
        S3Verb::Get { bucket, key } => {
            std::io::Write::write_all(&mut std::io::stdout(), &client.get(&bucket, &key)?)?;
        }
        S3Verb::Rm { bucket, key } => client.delete(&bucket, &key)?,
    }
    Ok(ExitCode::SUCCESS)
}
