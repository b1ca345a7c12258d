//! Temporary keys: at STS for the keys of a role and at an agent on the node, both for a service account token, and at the
//! cloud's metadata service for those of the instance. The S3 client's own chain could do so only at Amazon's addresses, and its
//! failures name neither the role nor the reason.

mod answer;
mod renewal;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::keys::Keys;
use contract::text::on_one_line;
use thiserror::Error;
use ureq::Agent;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

pub use renewal::renew_at;

/// How long an exchange may take.
pub const ANSWER: Duration = Duration::from_secs(4);
const METADATA_ANSWER: Duration = Duration::from_secs(1);
/// One after the other: for a token, for the name of the role, for its keys.
const METADATA_REQUESTS: u64 = 3;
const _: () = assert!(
    METADATA_REQUESTS * METADATA_ANSWER.as_secs() <= ANSWER.as_secs(),
    "an exchange must end in time, whichever server is asked"
);
/// In seconds. Each token is used for one exchange, at once.
const METADATA_TOKEN_LIFE: &str = "60";
/// Answers with keys have about 2 KiB.
const LONGEST_ANSWER: u64 = 64 << 10;
/// Of what a server says about a failure.
const LONGEST_REASON: usize = 500;
/// The authorities of the system, where no others are configured.
pub const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// None of them contains the token.
#[derive(Debug, Error)]
pub enum ExchangeError {
    #[error("cannot read the service account token: {0}")]
    Token(#[source] io::Error),
    #[error(
        "cannot read the trusted authorities in {file}: {source}; correct `ca-bundle` of the volume, or \
         `tls.caCertConfigMap` of the installation"
    )]
    Authorities { file: PathBuf, source: io::Error },
    #[error("{server} cannot be reached to get temporary keys ({reason}): {remedy}")]
    Unreachable { server: String, reason: String, remedy: &'static str },
    #[error("{server} refuses {wanted} to this service account ({code}: {message}): {remedy}")]
    Refused { server: String, wanted: String, code: String, message: String, remedy: &'static str },
    #[error("{server} answered {status} without temporary keys: {remedy}")]
    NoKeys { server: String, status: u16, remedy: &'static str },
}

impl ExchangeError {
    /// Whether the server will refuse it again.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether the server is overloaded, or has failed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoKeys { status, .. } if is_transient(*status))
    }

    pub fn is_expired_token(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if is_expired(code))
    }
}

fn is_expired(code: &str) -> bool {
    code.contains("ExpiredToken")
}

fn is_transient(status: u16) -> bool {
    status == 429 || status >= 500
}

/// What is exchanged, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub server: Server,
    /// File of trusted authorities; the system's if there is none.
    pub ca_bundle: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    Sts { endpoint: String, role_arn: String, session_name: String, token_file: PathBuf },
    Agent { uri: String, token_file: PathBuf },
    Metadata { url: String },
}

type Sent = Result<Response<ureq::Body>, ureq::Error>;

impl Exchange {
    /// Whose keys they are, for messages.
    pub fn identity(&self) -> String {
        match &self.server {
            Server::Sts { role_arn, .. } => format!("role {role_arn}"),
            Server::Agent { .. } => "the role of the Pod Identity association".to_owned(),
            Server::Metadata { .. } => "the role of the instance".to_owned(),
        }
    }

    /// One exchange: keys that expire. The token is read anew, because it is replaced before it expires.
    pub fn keys(&self) -> Result<Keys, ExchangeError> {
        let agent = self.agent()?;
        let token = |file: &Path| match std::fs::read_to_string(file) {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(error) => Err(ExchangeError::Token(error)),
        };
        let (token, sent) = match &self.server {
            Server::Sts { endpoint, role_arn, session_name, token_file } => {
                let token = token(token_file)?;
                let fields = [
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role_arn),
                    ("RoleSessionName", session_name),
                    ("WebIdentityToken", &token),
                ];
                let sent = agent.post(endpoint).send_form(fields);
                (token, sent)
            }
            Server::Agent { uri, token_file } => {
                let token = token(token_file)?;
                let sent = agent.get(uri).header("Authorization", &token).call();
                (token, sent)
            }
            Server::Metadata { url } => self.ask_metadata(&agent, url.trim_end_matches('/'))?,
        };
        let (status, body) = self.answer(sent, &token)?;
        let found = match &self.server {
            Server::Sts { .. } => answer::xml_keys(&body),
            Server::Agent { .. } | Server::Metadata { .. } => answer::json_keys(&body),
        };
        found.filter(|_| status == 200).ok_or_else(|| self.failure(status, &hide(&body, &token)))
    }

    /// Returns the token, with which each of the other requests is allowed, and the answer to the last of them.
    fn ask_metadata(&self, agent: &Agent, url: &str) -> Result<(String, Sent), ExchangeError> {
        const TOKEN: &str = "X-aws-ec2-metadata-token";
        let lasting = (format!("{TOKEN}-ttl-seconds"), METADATA_TOKEN_LIFE);
        let sent = agent.put(format!("{url}/latest/api/token")).header(lasting.0, lasting.1).send_empty();
        let token = self.text(sent, "")?;
        let roles = format!("{url}/latest/meta-data/iam/security-credentials/");
        let role = self.text(agent.get(&roles).header(TOKEN, &token).call(), &token)?;
        let role = role.lines().next().unwrap_or_default();
        let sent = agent.get(format!("{roles}{role}")).header(TOKEN, &token).call();
        Ok((token, sent))
    }

    fn text(&self, sent: Sent, token: &str) -> Result<String, ExchangeError> {
        let (status, body) = self.answer(sent, token)?;
        if status == 200 { Ok(body) } else { Err(self.failure(status, "")) }
    }

    fn answer(&self, sent: Sent, token: &str) -> Result<(u16, String), ExchangeError> {
        let unreachable = |error: ureq::Error| ExchangeError::Unreachable {
            server: self.address().to_owned(),
            reason: hide(&error.to_string(), token),
            remedy: match &self.server {
                Server::Metadata { .. } => {
                    "check that this is an instance of the cloud, and that the hop limit of its metadata service is at least 2"
                }
                Server::Sts { .. } | Server::Agent { .. } => {
                    "check that it is running, and that the network allows the connection"
                }
            },
        };
        let mut answer = sent.map_err(unreachable)?;
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        Ok((answer.status().as_u16(), body.map_err(unreachable)?))
    }

    fn address(&self) -> &str {
        match &self.server {
            Server::Sts { endpoint, .. } => endpoint,
            Server::Agent { uri, .. } => uri,
            Server::Metadata { url } => url,
        }
    }

    fn failure(&self, status: u16, body: &str) -> ExchangeError {
        let server = self.address().to_owned();
        if is_transient(status) {
            let remedy = "it is overloaded, or has failed: see its logs";
            return ExchangeError::NoKeys { server, status, remedy };
        }
        let (code, message, remedy) = match &self.server {
            Server::Sts { .. } => {
                let Some(code) = answer::element(body, "Code") else {
                    return ExchangeError::NoKeys { server, status, remedy: "check its address" };
                };
                let remedy = "check that the role exists and that its trust policy names this account";
                (code, answer::element(body, "Message").unwrap_or_default(), remedy)
            }
            Server::Agent { .. } if (400..500).contains(&status) => {
                let remedy = "check that the account has a Pod Identity association, and that its role trusts \
                              pods.eks.amazonaws.com";
                let (code, message) =
                    answer::of_agent(body).unwrap_or_else(|| (status.to_string(), body.to_owned()));
                (code, message, remedy)
            }
            Server::Agent { .. } => {
                return ExchangeError::NoKeys { server, status, remedy: "check its address" };
            }
            Server::Metadata { .. } => {
                let remedy = "give the instance an instance profile, and let it use IMDSv2";
                return ExchangeError::NoKeys { server, status, remedy };
            }
        };
        let remedy = if is_expired(&code) {
            "the kubelet has not renewed the service account token: check that it is running, and that the account exists"
        } else {
            remedy
        };
        let short = |text: &str| on_one_line(text.trim()).chars().take(LONGEST_REASON).collect::<String>();
        let (code, message) = (short(&code), short(&message));
        ExchangeError::Refused { server, wanted: self.identity(), code, message, remedy }
    }

    fn agent(&self) -> Result<Agent, ExchangeError> {
        let within = match &self.server {
            Server::Sts { .. } | Server::Agent { .. } => ANSWER,
            Server::Metadata { .. } => METADATA_ANSWER,
        };
        let mut config = Agent::config_builder().timeout_global(Some(within)).http_status_as_error(false);
        if self.address().starts_with("https://") {
            let bundle = self.ca_bundle.as_deref().unwrap_or_else(|| Path::new(SYSTEM_AUTHORITIES));
            let authorities = std::fs::read(bundle)
                .map_err(|source| ExchangeError::Authorities { file: bundle.to_owned(), source })?;
            let certificates = parse_pem(&authorities).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            config =
                config.tls_config(TlsConfig::builder().root_certs(RootCerts::from(certificates)).build());
        } else {
            // A volume may set only `HTTPS_PROXY`, which is not for such requests.
            config = config.proxy(None);
        }
        Ok(config.build().into())
    }
}

fn hide(text: &str, token: &str) -> String {
    if token.is_empty() { text.to_owned() } else { text.replace(token, "***") }
}

#[cfg(test)]
mod tests;
