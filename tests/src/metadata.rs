//! The metadata service of a cloud, as far as the keys of an instance need it: the second version, which wants a token.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use xtask::s3::Account;

use crate::agent::{add_address, keys};
use crate::http::{Listening, answer, header, read_request};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
const TOKEN: &str = "token-of-the-metadata-service";
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
/// Of the keys that it gives.
const LAST: SignedDuration = SignedDuration::from_secs(16);

/// Serves at the address of all clouds, on this node.
pub struct Metadata {
    _listening: Listening,
    connections: Arc<AtomicUsize>,
    given: Arc<AtomicUsize>,
}

impl Metadata {
    pub fn start(account: Account) -> Self {
        add_address(ADDRESS);
        let (connections, given) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&connections), Arc::clone(&given));
        let listening = Listening::start((ADDRESS, 80), move |client| {
            counts.0.fetch_add(1, Ordering::Relaxed);
            serve(client, account, &counts.1)
        });
        Self { _listening: listening, connections, given }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How often it gave keys.
    pub fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }
}

fn serve(mut client: TcpStream, account: Account, given: &AtomicUsize) -> Option<()> {
    let request = read_request(&mut client)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    if method == "PUT" && path == "/latest/api/token" {
        let lasting = header(&request, "x-aws-ec2-metadata-token-ttl-seconds");
        let known = lasting.and_then(|seconds| seconds.parse::<u32>().ok());
        return match known {
            Some(_) => answer(&mut client, "200 OK", TOKEN),
            None => answer(&mut client, "400 Bad Request", ""),
        };
    }
    if header(&request, "x-aws-ec2-metadata-token").as_deref() != Some(TOKEN) {
        return answer(&mut client, "401 Unauthorized", "");
    }
    match path.strip_prefix(ROLES) {
        Some("") => answer(&mut client, "200 OK", "role-of-the-instance"),
        Some("role-of-the-instance") => {
            given.fetch_add(1, Ordering::Relaxed);
            answer(&mut client, "200 OK", &keys(account, LAST).to_string())
        }
        _ => answer(&mut client, "404 Not Found", ""),
    }
}
