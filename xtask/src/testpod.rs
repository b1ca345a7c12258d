//! The program of test pods that read an object from the S3 server. Their image contains xtask itself.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::s3::Client;

/// Prints an object; endpoint and keys come from the usual `AWS_…` variables.
pub fn get(bucket: &str, key: &str) -> Result<()> {
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
