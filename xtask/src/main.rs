//! `cargo xtask …`: everything one does with this project.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use xtask::cache::Cache;
use xtask::cluster::{self, Cluster, Plan, State};
use xtask::command::relay;
use xtask::programs::Kubernetes;
use xtask::progress::step;
use xtask::s3::{self, Account};
use xtask::{bench, debian, demo, ground, image, test, testpod};

/// Build, run, test and measure the project on a real Kubernetes node.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Xtask {
    /// Show the project at work: from nothing to a pod that uses the S3 server.
    Demo(Release),
    /// Run every test, or one suite of them.
    Test(test::Wanted),
    /// Measure; the figures also go to target/bench/NAME.json.
    Bench(bench::Wanted),
    /// The Kubernetes node that the demo and the tests stand on.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Play with the S3 server of a running cluster.
    S3(S3Arguments),
    /// Build the release programs and the images.
    Image(ImageArguments),
    /// Write anew what is generated and committed.
    Gen,
    #[command(name = cluster::INIT, hide = true)]
    Init { dir: PathBuf },
    #[command(hide = true)]
    Testpod { bucket: String, key: String },
}

#[derive(Args)]
struct Release {
    /// Which Kubernetes to run.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
}

#[derive(Args)]
struct Name {
    /// Which cluster; the tests use `test`.
    #[arg(long, default_value = cluster::DEFAULT_NAME, value_parser = cluster::name)]
    name: String,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Start it; harmless when it runs.
    Up {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        release: Release,
    },
    /// Stop it and remove everything it made.
    Down {
        #[command(flatten)]
        name: Name,
        /// Every cluster of the cache, those of tests and benchmarks that were cut off included.
        #[arg(long)]
        all: bool,
    },
    /// Say what runs.
    Status {
        #[command(flatten)]
        name: Name,
    },
    /// Run kubectl as its administrator.
    Kubectl {
        #[command(flatten)]
        name: Name,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run any command inside the node.
    Exec {
        #[command(flatten)]
        name: Name,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
}

#[derive(Args)]
struct S3Arguments {
    #[command(flatten)]
    name: Name,
    /// Whose buckets: root, alice or bob.
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
    /// Remove an empty bucket.
    Rb { bucket: String },
    /// Store a file (or `-`, standard input) as an object.
    Put { file: PathBuf, bucket: String, key: String },
    /// Print an object.
    Get { bucket: String, key: String },
    /// Remove an object.
    Rm { bucket: String, key: String },
}

#[derive(Args)]
struct ImageArguments {
    /// Only write the files of this image into a folder, for the Dockerfile.
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
    // These two run where there is no cache.
    match &command {
        Xtask::Init { dir } => return cluster::run_init(dir).map(|()| ExitCode::SUCCESS),
        Xtask::Testpod { bucket, key } => return testpod::get(bucket, key).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let cache = Cache::open()?;
    cache.adopt(xtask::cache::checkout())?;
    match command {
        Xtask::Demo(release) => demo::run(&cache, release.kubernetes)?,
        Xtask::Test(wanted) => return test::run(&cache, &wanted),
        Xtask::Bench(wanted) => bench::run(&cache, &wanted)?,
        Xtask::Cluster(command) => return run_cluster(&cache, command),
        Xtask::S3(arguments) => return run_s3(&cache, arguments),
        Xtask::Image(ImageArguments { only: Some(name), rootfs: Some(folder) }) => {
            image::unpack(&cache, &name, &folder)?;
        }
        Xtask::Gen => test::generate(&cache)?,
        Xtask::Image(_) => {
            debian::ensure_packages()?;
            for image in image::build_all(&cache)? {
                println!("{} {}\n    {}", image.reference, image.digest, image.archive.display());
            }
        }
        Xtask::Init { .. } | Xtask::Testpod { .. } => unreachable!("handled above"),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_cluster(cache: &Cache, command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Up { name, release } => {
            ground::prepare(cache, release.kubernetes)?;
            let plan = Plan { kubernetes: release.kubernetes, ..Plan::default() };
            step("cluster up", || Cluster::named(cache, &name.name).up(plan))?;
        }
        ClusterCommand::Down { name, all } => {
            let names = if all { Cluster::names(cache)? } else { vec![name.name] };
            for name in names {
                step(&format!("cluster `{name}` down"), || Cluster::named(cache, &name).down())?;
            }
        }
        ClusterCommand::Status { name } => match Cluster::named(cache, &name.name).state()? {
            State::Down => println!("down"),
            State::Broken => {
                println!("broken: `cluster up` starts it anew, `cluster down` removes the rest");
            }
            State::Up { plan, processes, resident_mb } => {
                println!("up: {plan}, {processes} processes, {resident_mb} MB resident");
            }
        },
        ClusterCommand::Kubectl { name, arguments } => {
            return relay(Cluster::named(cache, &name.name).kubectl()?.args(arguments));
        }
        ClusterCommand::Exec { name, command } => {
            return relay(Cluster::named(cache, &name.name).command(&command[0])?.args(&command[1..]));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_s3(cache: &Cache, arguments: S3Arguments) -> Result<ExitCode> {
    let cluster = Cluster::named(cache, &arguments.name.name);
    if cluster.init_process() != Some(1) {
        // The server is in the node's network: the same command again, in there.
        return relay(cluster.command(std::env::current_exe()?)?.args(std::env::args_os().skip(1)));
    }
    let account = Account::named(&arguments.account).with_context(|| {
        format!("there is no account `{}`; there are: root, alice, bob", arguments.account)
    })?;
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
