//! Against servers that answer what is written here.

use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

use secrecy::ExposeSecret as _;

const XML: &str = "<Credentials><AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
    <SessionToken>t</SessionToken><Expiration>2030-01-02T03:04:05Z</Expiration></Credentials>";
const JSON: &str = r#"{"AccessKeyId":"ASIA","SecretAccessKey":"s","Token":"t","Code":"Success",
                       "Expiration":"2030-01-02T03:04:05Z"}"#;

/// Answers one request after the other with these, and returns what it was asked.
fn server(answers: &[(u16, &str)]) -> (String, JoinHandle<Vec<String>>) {
    server_at("127.0.0.1:0", answers)
}

fn server_at(address: &str, answers: &[(u16, &str)]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind(address).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers: Vec<String> = answers
        .iter()
        .map(|(status, body)| {
            let length = body.len();
            format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        })
        .collect();
    let asked = std::thread::spawn(move || {
        let answer = |answer: String| {
            let (mut client, _) = listener.accept().unwrap();
            let mut asked = vec![0; 16 << 10];
            let mut length = 0;
            loop {
                length += client.read(&mut asked[length..]).unwrap();
                let text = String::from_utf8_lossy(&asked[..length]).into_owned();
                let whole = text.contains("\r\n\r\n") && !text.starts_with("POST ");
                if whole || text.contains("WebIdentityToken=") {
                    client.write_all(answer.as_bytes()).unwrap();
                    return text;
                }
            }
        };
        answers.into_iter().map(answer).collect()
    });
    (url, asked)
}

fn exchange(server: Server) -> Exchange {
    Exchange { server, ca_bundle: None }
}

fn token_file(folder: &Path) -> PathBuf {
    let token_file = folder.join("token");
    std::fs::write(&token_file, "the.jwt.token\n").unwrap();
    token_file
}

fn sts(folder: &Path, endpoint: String) -> Exchange {
    let (role_arn, session_name) = ("arn:aws:iam::1:role/reader".to_owned(), "pod".to_owned());
    exchange(Server::Sts { endpoint, role_arn, session_name, token_file: token_file(folder) })
}

#[test]
fn sts_gives_keys_of_the_role() {
    let folder = tempfile::tempdir().unwrap();
    let (url, asked) = server(&[(200, XML)]);
    let keys = sts(folder.path(), url).keys().unwrap();
    assert_eq!((keys.access_key_id.as_str(), keys.session_token.unwrap().expose_secret()), ("ASIA", "t"));
    let asked = asked.join().unwrap().remove(0);
    for field in [
        "Action=AssumeRoleWithWebIdentity",
        "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Freader",
        "RoleSessionName=pod",
        "WebIdentityToken=the.jwt.token",
    ] {
        assert!(asked.contains(field), "{field} in {asked}");
    }
}

/// As Amazon's agent has on nodes with IPv6.
#[test]
fn an_agent_may_have_an_ipv6_address() {
    let folder = tempfile::tempdir().unwrap();
    let (uri, _) = server_at("[::1]:0", &[(200, JSON)]);
    let keys = exchange(Server::Agent { uri, token_file: token_file(folder.path()) }).keys().unwrap();
    assert_eq!(keys.access_key_id, "ASIA");
}

#[test]
fn an_agent_gives_keys_for_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let (uri, asked) = server(&[(200, JSON)]);
    let keys = exchange(Server::Agent { uri, token_file: token_file(folder.path()) }).keys().unwrap();
    assert_eq!((keys.access_key_id.as_str(), keys.session_token.unwrap().expose_secret()), ("ASIA", "t"));
    assert!(asked.join().unwrap()[0].to_lowercase().contains("authorization: the.jwt.token"));
}

/// The second version, because the first may be switched off, and is open to request forgery.
#[test]
fn the_metadata_service_is_asked_with_a_token() {
    let (url, asked) = server(&[(200, "session"), (200, "my-role\n"), (200, JSON)]);
    let keys = exchange(Server::Metadata { url }).keys().unwrap();
    assert_eq!((keys.access_key_id.as_str(), keys.session_token.unwrap().expose_secret()), ("ASIA", "t"));
    let asked = asked.join().unwrap();
    assert!(asked[0].starts_with("PUT /latest/api/token "), "{asked:?}");
    assert!(asked[0].to_lowercase().contains("x-aws-ec2-metadata-token-ttl-seconds: 60"), "{asked:?}");
    assert!(asked[2].starts_with("GET /latest/meta-data/iam/security-credentials/my-role "), "{asked:?}");
    let allowed = |asked: &String| asked.to_lowercase().contains("x-aws-ec2-metadata-token: session");
    assert!(asked[1..].iter().all(allowed), "{asked:?}");
    let (url, _) = server(&[(200, "session"), (404, "")]);
    let error = exchange(Server::Metadata { url }).keys().unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("instance profile"), "{error}");
    let error = exchange(Server::Metadata { url: "http://127.0.0.1:1".to_owned() }).keys().unwrap_err();
    assert!(error.to_string().contains("hop limit"), "{error}");
}

#[test]
fn a_failure_names_the_role_and_never_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let sts = |url| sts(folder.path(), url);
    let refusal =
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not the.jwt.token</Message></Error>";
    let (url, _) = server(&[(403, refusal)]);
    let error = sts(url).keys().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("role arn:aws:iam::1:role/reader") && text.contains("AccessDenied"), "{text}");
    assert!(!text.contains("the.jwt") && !error.is_expired_token(), "{text}");
    let (url, _) = server(&[(400, "<Error><Code>ExpiredTokenException</Code></Error>")]);
    let error = sts(url).keys().unwrap_err();
    assert!(error.is_expired_token() && error.to_string().contains("kubelet"), "{error}");
    let (url, _) = server(&[(200, "<html>hello</html>")]);
    let error = sts(url).keys().unwrap_err();
    assert!(matches!(error, ExchangeError::NoKeys { status: 200, .. }), "{error}");
    let error = sts("http://127.0.0.1:1".to_owned()).keys().unwrap_err();
    assert!(matches!(error, ExchangeError::Unreachable { .. }), "{error}");
    let agent = |status, body| {
        let (uri, _) = server(&[(status, body)]);
        exchange(Server::Agent { uri, token_file: token_file(folder.path()) }).keys().unwrap_err()
    };
    let error = agent(404, "no association").to_string();
    assert!(error.contains("404: no association") && error.contains("check that the account"), "{error}");
    let error = agent(400, "[1-a]: (ExpiredTokenException): Token expired, fault: client");
    assert!(error.is_expired_token() && error.to_string().contains("kubelet"), "{error}");
}

/// The same servers will answer again, so it is not the account that is refused.
#[test]
fn a_server_that_fails_or_is_overloaded_refuses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let body = "<Error><Code>ServiceUnavailable</Code><Message>later</Message></Error>";
    for status in [429, 500, 503] {
        let (url, _) = server(&[(status, body)]);
        let error = sts(folder.path(), url).keys().unwrap_err();
        assert!(error.is_transient() && !error.is_refusal(), "{error}");
        assert!(error.to_string().contains(&format!("answered {status}")), "{error}");
    }
    let (url, _) = server(&[(400, body)]);
    let error = sts(folder.path(), url).keys().unwrap_err();
    assert!(error.is_refusal() && !error.is_transient(), "{error}");
}

#[test]
fn authorities_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut exchange = sts(folder.path(), "https://sts.test".to_owned());
    exchange.ca_bundle = Some("/no/such/file".into());
    let error = exchange.keys().unwrap_err().to_string();
    assert!(error.contains("/no/such/file") && error.contains("ca-bundle"), "{error}");
}
