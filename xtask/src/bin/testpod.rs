//! The program of test pods: reads an object, or is one of the two sides of a descriptor's hand-over.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use xtask::s3::Client;
use xtask::served_file;

/// The other pod may still be starting.
const PEER_WITHIN: Duration = Duration::from_mins(1);

#[derive(Parser)]
struct Arguments {
    /// Without one, stay.
    #[command(subcommand)]
    job: Option<Job>,
}

#[derive(Subcommand)]
enum Job {
    /// Print an object; endpoint and keys come from the usual AWS_… variables.
    Get { bucket: String, key: String },
    /// Mount the FUSE device at POINT and hand its descriptor to whoever listens on SOCKET.
    Offer { point: PathBuf, socket: PathBuf },
    /// Listen on SOCKET for a descriptor and serve a file with this CONTENT on it.
    Serve { socket: PathBuf, content: String },
}

fn main() -> Result<()> {
    match Arguments::parse().job {
        Some(Job::Get { bucket, key }) => get(&bucket, &key),
        Some(Job::Offer { point, socket }) => offer(&point, &socket),
        Some(Job::Serve { socket, content }) => serve(&socket, &content),
        None => loop {
            std::thread::park();
        },
    }
}

fn get(bucket: &str, key: &str) -> Result<()> {
    let variable = |name: &str| env::var(name).with_context(|| format!("{name} is not set"));
    let authority = env::var_os("AWS_CA_BUNDLE").map(PathBuf::from);
    let client = Client::with_keys(
        &variable("AWS_ENDPOINT_URL")?,
        &variable("AWS_ACCESS_KEY_ID")?,
        &variable("AWS_SECRET_ACCESS_KEY")?,
        authority.as_deref(),
    )?;
    print!("{}", String::from_utf8_lossy(&client.get(bucket, key)?));
    Ok(())
}

fn offer(point: &Path, socket: &Path) -> Result<()> {
    fs::create_dir_all(point)?;
    let device = served_file::mount_device(point)?;
    let deadline = Instant::now() + PEER_WITHIN;
    let peer = loop {
        match UnixStream::connect(socket) {
            Ok(peer) => break peer,
            Err(error) if Instant::now() > deadline => {
                bail!("nobody listens on {}: {error}", socket.display())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    served_file::send_descriptor(&peer, &device)?;
    println!("handed over");
    Ok(())
}

fn serve(socket: &Path, content: &str) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    // The side that offers is root in another pod.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666))?;
    let (peer, _) = listener.accept()?;
    let device = served_file::receive_descriptor(&peer)?;
    println!("serving as user {}", rustix::process::geteuid().as_raw());
    served_file::serve(device, content)
}
