//! The program of test pods: reads an object.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use xtask::s3::Client;

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
}

fn main() -> Result<()> {
    match Arguments::parse().job {
        Some(Job::Get { bucket, key }) => get(&bucket, &key),
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
