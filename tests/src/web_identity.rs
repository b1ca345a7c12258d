//! A second S3 server, with IAM and STS of its own, that trusts the service account tokens of this cluster's API server.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use xtask::cluster::{Cluster, NODE_ADDRESS};
use xtask::command::{capture, run};
use xtask::s3::{Client, HOST, REGION, ROOT};

use crate::http::{Listening, read_request};
use crate::mountpoint_pod::eventually;

/// IAM accepts no issuer at a private or loopback address.
const ISSUER_ADDRESS: &str = "198.51.100.1";
pub(crate) const ISSUER: &str = "kubernetes.default.svc";
pub(crate) const AUDIENCE: &str = "sts.amazonaws.com";
const S3_PORT: u16 = 7077;
const IAM_PORT: u16 = 7078;
const STS_PORT: u16 = 7079;
/// Of the keys that STS gives, so that they are renewed several times during a test. The server takes no less than 15 min.
const KEYS_LAST: SignedDuration = SignedDuration::from_secs(16);

/// Ends with its processes.
pub struct WebIdentity {
    processes: Vec<Child>,
    folder: TempDir,
    relay: Arc<Relay>,
    _listening: Listening,
}

/// Between the clients and STS.
#[derive(Default)]
struct Relay {
    /// Every request to STS and its answer.
    exchanged: Mutex<Vec<(String, String)>>,
    is_away: AtomicBool,
}

/// Whether keys of this role were given.
fn is_of((asked, answer): &(String, String), role: &str) -> bool {
    let role = role.replace(':', "%3A").replace('/', "%2F");
    asked.contains(&format!("RoleArn={role}&")) && answer.contains("<AccessKeyId>")
}

/// What a text has between these.
pub(crate) fn between(text: &str, from: &str, to: &str) -> Option<String> {
    let (_, rest) = text.split_once(from)?;
    Some(rest.split(to).next().unwrap_or_default().to_owned())
}

impl WebIdentity {
    /// Its buckets and roles are gone with it.
    pub fn start(cluster: &Cluster) -> Self {
        publish_issuer(cluster);
        let folder = tempfile::tempdir_in("/run").unwrap();
        let socket = folder.path().join("iam.sock");
        let serve = |port: u16, log: &str| {
            let mut command = Command::new(cluster.programs().unwrap().tool("versitygw"));
            let log = File::create(folder.path().join(log)).unwrap();
            command.args(["--port", &format!("{NODE_ADDRESS}:{port}"), "--region", REGION]);
            command.env("ROOT_ACCESS_KEY_ID", ROOT.access_key).env("ROOT_SECRET_ACCESS_KEY", ROOT.secret_key);
            command.env("SSL_CERT_FILE", cluster.authority()).stdin(Stdio::null());
            command.stdout(log.try_clone().unwrap()).stderr(log);
            command
        };
        let of = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let mut processes = Vec::new();
        let mut iam = serve(IAM_PORT, "iam.log");
        iam.arg("iam").arg("--dir").arg(of("iam")).arg("--private-ports").arg(&socket);
        processes.push(iam.spawn().unwrap());
        eventually("IAM has started", || socket.exists());
        let mut gateway = serve(S3_PORT, "s3.log");
        gateway.arg("--iam-standalone-endpoint").arg(&socket).arg("posix").arg(of("data"));
        processes.push(gateway.spawn().unwrap());
        eventually("the S3 server has started", || TcpStream::connect((NODE_ADDRESS, S3_PORT)).is_ok());
        let relay = Arc::new(Relay::default());
        let serving = Arc::clone(&relay);
        let listening = Listening::start((NODE_ADDRESS, STS_PORT), move |client| serving.exchange(client));
        let server = Self { processes, folder, relay, _listening: listening };
        server.trust(cluster);
        server
    }

    fn endpoint() -> String {
        format!("http://{HOST}:{S3_PORT}")
    }

    pub fn sts_endpoint() -> String {
        format!("http://{HOST}:{STS_PORT}")
    }

    /// The chart's values that let the driver use it.
    pub fn values() -> String {
        format!("s3.endpointUrl={},sts.endpointUrl={}", Self::endpoint(), Self::sts_endpoint())
    }

    pub fn client() -> Client {
        Client::new(&Self::endpoint(), ROOT).unwrap()
    }

    /// Whether STS closes every connection without an answer.
    pub fn sts_stays_away(&self, away: bool) {
        self.relay.is_away.store(away, Ordering::Relaxed);
    }

    /// How many different tokens were exchanged for keys of this role.
    pub fn tokens(&self, role: &str) -> usize {
        let all = self.relay.exchanged.lock().unwrap();
        let token = |(asked, _): &(String, String)| Some(asked.split_once("WebIdentityToken=")?.1.to_owned());
        let of_role = all.iter().filter(|exchange| is_of(exchange, role));
        of_role.filter_map(token).collect::<BTreeSet<_>>().len()
    }

    /// How often STS has given keys of this role.
    pub fn exchanges(&self, role: &str) -> usize {
        self.relay.exchanged.lock().unwrap().iter().filter(|exchange| is_of(exchange, role)).count()
    }

    /// The name of the last session in which keys of this role were given.
    pub fn session(&self, role: &str) -> Option<String> {
        let all = self.relay.exchanged.lock().unwrap();
        let (asked, _) = all.iter().rfind(|exchange| is_of(exchange, role))?;
        between(asked, "RoleSessionName=", "&")
    }

    /// Every token that was sent, and every secret key and session token that was given.
    pub fn secrets(&self) -> Vec<String> {
        let all = self.relay.exchanged.lock().unwrap();
        let of = |(asked, answer): &(String, String)| {
            [
                between(asked, "WebIdentityToken=", "&"),
                between(answer, "<SecretAccessKey>", "<"),
                between(answer, "<SessionToken>", "<"),
            ]
        };
        let found = all.iter().flat_map(of).flatten().map(|secret| secret.trim().to_owned());
        found.filter(|secret| secret.len() > 8).collect()
    }

    fn trust(&self, cluster: &Cluster) {
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-fingerprint", "-sha1", "-in"]).arg(cluster.authority());
        let print = capture(&mut openssl).unwrap();
        let print = print.rsplit('=').next().unwrap().trim().replace(':', "").to_lowercase();
        self.iam(&[
            "Action=CreateOpenIDConnectProvider",
            &format!("Url=https://{ISSUER}"),
            &format!("ClientIDList.member.1={AUDIENCE}"),
            &format!("ThumbprintList.member.1={print}"),
        ]);
    }

    /// Returns what IAM answers.
    pub(crate) fn iam(&self, fields: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "20", "--aws-sigv4"]);
        curl.arg(format!("aws:amz:{REGION}:iam"));
        curl.args(["--user", &format!("{}:{}", ROOT.access_key, ROOT.secret_key)]);
        for field in fields.iter().chain(&["Version=2010-05-08"]) {
            curl.args(["--data-urlencode", field]);
        }
        let log = || fs::read_to_string(self.folder.path().join("iam.log")).unwrap_or_default();
        capture(curl.arg(format!("http://{NODE_ADDRESS}:{IAM_PORT}/")))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", log()))
    }
}

impl Drop for WebIdentity {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Lets the server find the API server's own public keys, under the issuer's name and without credentials.
fn publish_issuer(cluster: &Cluster) {
    static FORWARDED: Once = Once::new();
    let mut ip = Command::new("ip");
    run(ip.args(["address", "replace", &format!("{ISSUER_ADDRESS}/32"), "dev", "lo"])).unwrap();
    let hosts = Path::new("/etc/hosts");
    let known = fs::read_to_string(hosts).unwrap();
    if !known.contains(ISSUER) {
        fs::write(hosts, format!("{known}{ISSUER_ADDRESS} {ISSUER}\n")).unwrap();
        let role = "--clusterrole=system:service-account-issuer-discovery";
        let mut kubectl = cluster.kubectl().unwrap();
        run(kubectl.args(["create", "clusterrolebinding", "issuer", role, "--group=system:unauthenticated"]))
            .unwrap();
    }
    // Until this program ends.
    FORWARDED.call_once(|| {
        let listener = TcpListener::bind((ISSUER_ADDRESS, 443)).unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect((NODE_ADDRESS, 6443)) else { continue };
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut { client }, &mut { server }));
                thread::spawn(move || io::copy(&mut { back.0 }, &mut { back.1 }));
            }
        });
    });
}

impl Relay {
    /// Records the exchange, and has its keys expire soon.
    fn exchange(&self, mut client: TcpStream) -> Option<()> {
        let asked = read_request(&mut client)?;
        if self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        // Without keeping the connection, the answer ends with it.
        let forwarded = asked.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let mut server = TcpStream::connect((NODE_ADDRESS, IAM_PORT)).ok()?;
        server.write_all(forwarded.as_bytes()).ok()?;
        let mut answer = String::new();
        server.read_to_string(&mut answer).ok()?;
        if let Some((before, rest)) = answer.split_once("<Expiration>")
            && let Some((_, after)) = rest.split_once("</Expiration>")
        {
            // As long as the server's own, so that the length of the answer stays right.
            let soon = (Timestamp::now() + KEYS_LAST).strftime("%Y-%m-%dT%H:%M:%SZ");
            answer = format!("{before}<Expiration>{soon}</Expiration>{after}");
        }
        client.write_all(answer.as_bytes()).ok()?;
        self.exchanged.lock().unwrap().push((asked, answer));
        Some(())
    }
}
