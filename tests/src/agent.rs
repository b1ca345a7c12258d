//! An agent as EKS Pod Identity has one on each node: gives temporary keys to those whose token it accepts.

use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use xtask::cluster::Cluster;
use xtask::command::{capture, run};
use xtask::s3::Account;

use crate::http::{Listening, answer, header, read_request};

/// Where it listens on the nodes of EKS.
pub const LINK_LOCAL: &str = "169.254.170.23";
const AUDIENCE: &str = "pods.eks.amazonaws.com";

pub struct Agent {
    listening: Listening,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    given: AtomicUsize,
    away: AtomicBool,
    /// Tokens that were sent.
    tokens: Mutex<Vec<String>>,
}

/// The account that a token stands for.
type Accept = dyn Fn(&str) -> Option<Account> + Send + Sync;

impl Agent {
    /// Gives keys that are said to last so long.
    pub fn start(address: &str, last: SignedDuration, accept: Arc<Accept>) -> Self {
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
        self.state.given.load(Ordering::Relaxed)
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
        let token = header(&request, "authorization");
        self.tokens.lock().unwrap().extend(token.clone());
        let Some(account) = token.and_then(|token| accept(&token)) else {
            return answer(&mut client, "404 Not Found", "no association for this service account");
        };
        self.given.fetch_add(1, Ordering::Relaxed);
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

/// Gives this node a link-local address.
pub fn add_address(address: &str) {
    run(Command::new("ip").args(["address", "replace", &format!("{address}/32"), "dev", "lo"])).unwrap();
}

/// Has the API server say whose token for the agent it is: namespace and name of a service account, with a colon between.
pub fn review(cluster: &Cluster, token: &str) -> Option<String> {
    let object = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    });
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    let mut kubectl = cluster.kubectl().unwrap();
    kubectl.arg("create").arg("--filename").arg(file.path()).arg("--output=json");
    let reviewed: Value = serde_json::from_str(&capture(&mut kubectl).ok()?).ok()?;
    let status = &reviewed["status"];
    let user = status["user"]["username"].as_str().filter(|_| status["authenticated"] == true)?;
    user.strip_prefix("system:serviceaccount:").map(str::to_owned)
}
