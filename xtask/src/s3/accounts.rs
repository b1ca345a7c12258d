//! Creates and removes accounts of the running S3 server.

use std::process::Command;

use anyhow::Result;

use super::{ENDPOINT, ROOT};
use crate::command::run;
use crate::programs::Programs;

/// An ordinary account, which can create its own buckets.
pub fn create(programs: &Programs, access_key: &str, secret_key: &str) -> Result<()> {
    let account = ["create-user", "--access", access_key, "--secret", secret_key, "--role", "userplus"];
    run(admin(programs).args(account))
}

pub fn delete(programs: &Programs, access_key: &str) -> Result<()> {
    run(admin(programs).args(["delete-user", "--access", access_key]))
}

/// Gives a bucket to another account. Only its owner can use it.
pub fn give_bucket(programs: &Programs, bucket: &str, access_key: &str) -> Result<()> {
    run(admin(programs).args(["change-bucket-owner", "--bucket", bucket, "--owner", access_key]))
}

fn admin(programs: &Programs) -> Command {
    let mut command = Command::new(programs.tool("versitygw"));
    command.env("ADMIN_ACCESS_KEY_ID", ROOT.access_key).env("ADMIN_SECRET_ACCESS_KEY", ROOT.secret_key);
    command.args(["admin", "--endpoint-url", ENDPOINT]);
    command
}
