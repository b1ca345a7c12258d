//! Signature Version 4 in headers. It covers method, path, query, the headers that matter and the hash of the payload, so
//! that an intercepted request can be repeated for a while but not changed; and no URL carries a signature or a token that
//! proxies and logs would keep.

use contract::keys::Keys;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Method;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use url::Url;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A request before it is signed. The URL is as it is sent: encoded, its query in order.
pub(super) struct Unsigned<'a> {
    pub(super) method: &'a Method,
    pub(super) url: &'a Url,
    pub(super) payload: &'a [u8],
    /// Headers to be signed; lower-case.
    pub(super) headers: &'a [(&'static str, String)],
}

/// The headers to send, including the given ones.
pub(super) fn sign(
    request: &Unsigned<'_>,
    keys: &Keys,
    region: &str,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let now = now.to_zoned(TimeZone::UTC);
    let (moment, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let payload = hex(&Sha256::digest(request.payload));
    let mut headers = request.headers.to_vec();
    headers.extend([
        ("host", host(request.url)),
        ("x-amz-content-sha256", payload.clone()),
        ("x-amz-date", moment.clone()),
    ]);
    let token = keys.session_token.as_ref().map(|token| token.expose_secret().to_owned());
    headers.extend(token.map(|token| ("x-amz-security-token", token)));
    headers.sort_unstable();

    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines =
        headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect::<Vec<_>>().concat();
    let (path, query) = (request.url.path(), request.url.query().unwrap_or_default());
    let canonical = format!("{}\n{path}\n{query}\n{lines}\n{names}\n{payload}", request.method);
    let scope = format!("{day}/{region}/s3/aws4_request");
    let to_sign = format!("{ALGORITHM}\n{moment}\n{scope}\n{}", hex(&Sha256::digest(canonical)));

    let secret = format!("AWS4{}", keys.secret_access_key.expose_secret()).into_bytes();
    let key = scope.split('/').fold(secret, |key, part| mac(&key, part));
    let (id, signature) = (&keys.access_key_id, hex(&mac(&key, &to_sign)));
    let authorization =
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
    headers.push(("authorization", authorization));
    headers
}

/// The `Host` header: without the port that the scheme implies.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn mac(key: &[u8], message: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(url: &str, payload: &str, token: Option<&str>) -> Vec<(&'static str, String)> {
        let keys = Keys {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: token.map(Into::into),
            expires: None,
        };
        let url = url.parse().unwrap();
        let request = Unsigned { method: &Method::GET, url: &url, payload: payload.as_bytes(), headers: &[] };
        sign(&request, &keys, "us-east-1", "2013-05-24T00:00:00Z".parse().unwrap())
    }

    fn header(headers: &[(&'static str, String)], name: &str) -> String {
        headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Amazon's own examples.
    #[test]
    fn published_requests_have_their_published_signatures() {
        for (query, signature) in [
            ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ] {
            let headers = signed(&format!("https://examplebucket.s3.amazonaws.com/?{query}"), "", None);
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                 SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
            );
            assert_eq!(header(&headers, "authorization"), expected);
        }
    }

    #[test]
    fn payload_host_and_token_are_signed() {
        let headers = signed("http://s3.test:8000/b", "", Some("token"));
        assert_eq!(
            (header(&headers, "host"), header(&headers, "x-amz-security-token")),
            ("s3.test:8000".into(), "token".into())
        );
        let authorization = header(&headers, "authorization");
        assert!(
            authorization.contains("host;x-amz-content-sha256;x-amz-date;x-amz-security-token"),
            "{authorization}"
        );
        for other in [
            signed("http://s3.test:8000/b", "x", Some("token")),
            signed("http://s3.test:8000/b", "", Some("other")),
            signed("http://s3.test/b", "", Some("token")),
        ] {
            assert_ne!(header(&other, "authorization"), authorization);
        }
    }
}
