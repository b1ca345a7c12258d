//! Service account tokens that the API server would have issued long ago.

use std::fs;
use std::process::Command;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::command::run;

/// Seconds by which the token is older, more than any clock skew that a server allows.
const OLDER: i64 = 7200;

/// The same token issued so long ago that it has expired, signed by the cluster's own key. The API server itself issues none that
/// expires in less than 10 minutes.
pub fn expired(cluster: &Cluster, token: &str) -> String {
    let (header, rest) = token.split_once('.').unwrap();
    let (claims, _) = rest.split_once('.').unwrap();
    let mut claims: Value = serde_json::from_slice(&decode(claims)).unwrap();
    let issued = claims["iat"].as_i64().unwrap() - OLDER;
    for (claim, at) in [("iat", issued), ("nbf", issued), ("exp", issued + 600)] {
        claims[claim] = json!(at);
    }
    let signed = format!("{header}.{}", encode(claims.to_string().as_bytes()));
    let signature = sign(cluster, &signed);
    format!("{signed}.{}", encode(&signature))
}

/// ECDSA on P-256, as tokens have it: both numbers with 32 bytes each.
fn sign(cluster: &Cluster, text: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (message, signature) = (folder.path().join("message"), folder.path().join("signature"));
    fs::write(&message, text).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-sign"]).arg(cluster.pki("sa.key")).arg("-out").arg(&signature);
    run(openssl.arg(&message)).unwrap();
    let sequence = fs::read(&signature).unwrap();
    // DER: a sequence of two integers, each with its tag and length, without leading zeros or with one for the sign.
    let first = &sequence[4..4 + usize::from(sequence[3])];
    let second = &sequence[4 + first.len() + 2..];
    let mut numbers = Vec::new();
    for integer in [first, second] {
        let digits = &integer[integer.len().saturating_sub(32)..];
        numbers.extend(vec![0; 32 - digits.len()]);
        numbers.extend(digits);
    }
    numbers
}

fn encode(bytes: &[u8]) -> String {
    let text = serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    text.as_str().unwrap().trim_end_matches('=').replace('+', "-").replace('/', "_")
}

fn decode(text: &str) -> Vec<u8> {
    let padding = "=".repeat((4 - text.len() % 4) % 4);
    let standard = text.replace('-', "+").replace('_', "/") + &padding;
    serde_json::from_value::<ByteString>(json!(standard)).unwrap().0
}
