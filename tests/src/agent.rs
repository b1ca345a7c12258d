//! An agent as EKS Pod Identity has one on each node: gives temporary keys to those whose token it accepts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, ToSocketAddrs};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use xtask::cluster::Cluster;
use xtask::command::{capture, run};
use xtask::s3::Account;

use crate::http::{Listening, answer, header, read_request};

/// Where it listens on the nodes of EKS.
pub const LINK_LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23));
/// The same in clusters of IPv6.
pub const UNIQUE_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23));
const AUDIENCE: &str = "pods.eks.amazonaws.com";

pub struct Agent {
    listening: Listening,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The access keys that it gave.
    given: Mutex<Vec<&'static str>>,
    away: AtomicBool,
    /// Tokens that were sent.
    tokens: Mutex<Vec<String>>,
}

/// The account that a token stands for.
type Accept = dyn Fn(&str) -> Result<Account, Refusal> + Send + Sync;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NoAssociation,
    Expired,
    Invalid,
}

impl Refusal {
    /// As Amazon's agent writes them.
    fn answer(self) -> (&'static str, &'static str) {
        match self {
            Self::NoAssociation => {
                ("404 Not Found", "(ResourceNotFoundException): no association for this service account")
            }
            Self::Expired => ("400 Bad Request", "(ExpiredTokenException): the token has expired"),
            Self::Invalid => ("400 Bad Request", "(InvalidTokenException): the token is not valid"),
        }
    }
}

impl Agent {
    /// Gives keys that are said to last so long.
    pub fn start(address: impl ToSocketAddrs, last: SignedDuration, accept: Arc<Accept>) -> Self {
        let state = Arc::<State>::default();
        let own = Arc::clone(&state);
        let listening = Listening::start(address, move |client| state.serve(client, last, &*accept));
        Self { listening, state: own }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/credentials", self.listening.address)
    }

    /// How often it gave keys.
    pub fn given(&self) -> usize {
        self.state.given.lock().unwrap().len()
    }

    /// How often it gave the keys of this account.
    pub fn given_of(&self, account: Account) -> usize {
        self.state.given.lock().unwrap().iter().filter(|key| **key == account.access_key).count()
    }

    /// Whether it closes every connection without an answer.
    pub fn stay_away(&self, away: bool) {
        self.state.away.store(away, Ordering::Relaxed);
    }

    /// The tokens that it was sent.
    pub fn tokens(&self) -> Vec<String> {
        self.state.tokens.lock().unwrap().clone()
    }
}

impl State {
    fn serve(&self, mut client: TcpStream, last: SignedDuration, accept: &Accept) -> Option<()> {
        let request = read_request(&mut client)?;
        if self.away.load(Ordering::Relaxed) {
            return None;
        }
        let token = header(&request, "authorization").unwrap_or_default();
        self.tokens.lock().unwrap().push(token.clone());
        let account = match accept(&token) {
            Ok(account) => account,
            Err(refusal) => {
                let (status, said) = refusal.answer();
                return answer(&mut client, status, &format!("[request]: {said}, fault: client"));
            }
        };
        self.given.lock().unwrap().push(account.access_key);
        answer(&mut client, "200 OK", &keys(account, last).to_string())
    }
}

/// As agents and metadata services write them.
pub(crate) fn keys(account: Account, last: SignedDuration) -> Value {
    json!({
        "AccessKeyId": account.access_key, "SecretAccessKey": account.secret_key, "Token": "", "Code": "Success",
        "AccountId": "123456789012", "Expiration": (Timestamp::now() + last).to_string(),
    })
}

/// Gives this node an address that its pods reach, too.
pub fn add_address(address: IpAddr) {
    let mut ip = Command::new("ip");
    ip.args(["address", "replace", &address.to_string(), "dev", "lo"]);
    if address.is_ipv6() {
        // Until the kernel has looked for duplicates, which takes a while on a busy machine, nothing can listen there.
        ip.arg("nodad");
    }
    run(&mut ip).unwrap();
}

/// Has the API server say whose token for the agent it is: namespace and name of a service account, with a colon between.
pub fn review(cluster: &Cluster, token: &str) -> Result<String, Refusal> {
    let object = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    });
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    let mut kubectl = cluster.kubectl().unwrap();
    kubectl.arg("create").arg("--filename").arg(file.path()).arg("--output=json");
    let reviewed: Value = serde_json::from_str(&capture(&mut kubectl).unwrap()).unwrap();
    let status = &reviewed["status"];
    let account = status["user"]["username"].as_str().filter(|_| status["authenticated"] == true);
    let account = account.and_then(|name| name.strip_prefix("system:serviceaccount:"));
    let expired = status["error"].as_str().is_some_and(|error| error.contains("expired"));
    account.map(str::to_owned).ok_or(if expired { Refusal::Expired } else { Refusal::Invalid })
}
