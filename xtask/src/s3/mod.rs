//! The S3 server of tests and demo: its endpoints, its accounts and a client.

pub mod accounts;
mod client;

pub use client::{Client, Refused};

/// One name for pods and for the node; buckets are also reached as `BUCKET.s3.test`.
pub const HOST: &str = "s3.test";
pub const ENDPOINT: &str = "http://s3.test";
/// The same server with a certificate of the cluster's authority.
pub const ENDPOINT_TLS: &str = "https://s3.test";
pub const REGION: &str = "us-east-1";

/// These keys need no protection: the server is reachable only in the cluster's own network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: &'static str,
    pub access_key: &'static str,
    pub secret_key: &'static str,
}

pub const ROOT: Account =
    Account { name: "root", access_key: "AKIAROOT", secret_key: "root-secret-of-the-test-server" };
pub const ALICE: Account =
    Account { name: "alice", access_key: "AKIAALICE", secret_key: "alice-secret-of-the-test-server" };
pub const BOB: Account =
    Account { name: "bob", access_key: "AKIABOB", secret_key: "bob-secret-of-the-test-server" };

/// The ordinary accounts, each of which sees only its own buckets.
pub const ACCOUNTS: &[Account] = &[ALICE, BOB];

impl Account {
    pub fn named(name: &str) -> Option<Self> {
        [ROOT].iter().chain(ACCOUNTS).find(|account| account.name == name).copied()
    }
}
