//! Removes secrets from what is handed to others: values that are known to be secret wherever they are, and what has the shape or
//! the name of a secret.

use k8s_openapi::ByteString;
use serde_json::Value;

use crate::secret::Values;

const REMOVED: &str = "REMOVED";
/// A shorter value would be found inside ordinary words.
const SHORTEST: usize = 6;
/// What stands before a secret in logs, headers and URLs.
const MARKS: &[&str] = &[
    "secret_access_key",
    "secretaccesskey",
    "session_token",
    "sessiontoken",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-credential",
    "signature=",
    "credential=",
    "authorization:",
    "bearer ",
    "password",
];
/// In names of variables, annotations and fields.
const NAMES: &[&str] = &[
    "secret_key",
    "secretkey",
    "secret_access",
    "secretaccess",
    "token",
    "password",
    "passwd",
    "credential",
];
/// Fields with such a name that hold no secret.
const HARMLESS: &[&str] = &["automountserviceaccounttoken", "credentials_dir"];
/// Objects as their authors wrote them, Secrets of a list included.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Knows the values to remove. Cannot be printed.
pub struct Scrubber {
    /// Longest first: one may be part of another.
    values: Vec<String>,
}

impl Scrubber {
    pub fn new(known: &Values) -> Self {
        let long = known.0.iter().filter(|value| value.len() >= SHORTEST);
        let mut values: Vec<String> = long.flat_map(|value| [value.clone(), base64(value)]).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// Any object of the API, without what only its servers need.
    pub fn object(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.object(item)).collect()),
            Value::Object(fields) => {
                let named = fields.get("name").and_then(Value::as_str).is_some_and(is_sensitive);
                let kept = fields.into_iter().filter(|(key, _)| key != "managedFields" && key != APPLIED);
                let scrubbed = kept.map(|(key, value)| {
                    // A variable has its name and its value side by side.
                    let secret = is_sensitive(&key) || (named && key == "value");
                    let value = if secret && value.is_string() {
                        Value::String(REMOVED.to_owned())
                    } else {
                        self.object(value)
                    };
                    (key, value)
                });
                Value::Object(scrubbed.collect())
            }
            other => other,
        }
    }

    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            text = text.replace(value.as_str(), REMOVED);
        }
        let mut private_key = false;
        let lines = text.split('\n').map(|line| {
            let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY-----");
            let inside = begins || private_key;
            private_key = inside && !line.contains("-----END");
            if inside { REMOVED.to_owned() } else { shapes(&after_marks(line)) }
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn is_sensitive(name: &str) -> bool {
    let name = name.to_lowercase();
    !HARMLESS.contains(&name.as_str())
        && NAMES.iter().any(|part| name.contains(part))
        && !name.ends_with("name")
}

/// What Secrets hold is also written like this.
fn base64(value: &str) -> String {
    let encoded = serde_json::to_value(ByteString(value.as_bytes().to_vec()));
    encoded.ok().and_then(|encoded| encoded.as_str().map(str::to_owned)).unwrap_or_default()
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || "\"'`=:,;&<>{}[]()".contains(c)
}

/// Removes the word behind each mark.
fn after_marks(line: &str) -> String {
    // ASCII only: positions stay those of the line.
    let lower = line.to_ascii_lowercase();
    let (mut text, mut done) = (String::new(), 0);
    while let Some((at, mark)) =
        MARKS.iter().filter_map(|mark| Some((lower[done..].find(mark)? + done, mark))).min()
    {
        let after = at + mark.len();
        let start = lower[after..].find(|c| !is_separator(c)).map_or(line.len(), |skipped| after + skipped);
        let end = lower[start..].find(is_separator).map_or(line.len(), |length| start + length);
        // `Authorization: Bearer TOKEN`: the next mark is the word.
        let word = &lower[start..end];
        // `correct secret_access_key in the Secret` is advice, not a secret.
        let is_given = mark.ends_with(['=', ':', ' ']) || lower[after..start].contains(['=', ':']);
        if !is_given || MARKS.iter().any(|mark| mark.trim_end() == word) {
            text.push_str(&line[done..start]);
            done = start;
            continue;
        }
        text.push_str(&line[done..start]);
        if start < end {
            text.push_str(REMOVED);
        }
        done = end;
    }
    text + &line[done..]
}

/// Removes words that look like access keys or tokens, and passwords in URLs.
fn shapes(line: &str) -> String {
    let is_secret = |word: &str| {
        let key = word.len() == 20 && (word.starts_with("AKIA") || word.starts_with("ASIA"));
        let key = key && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
        key || (word.len() > 40 && word.starts_with("eyJ") && word.matches('.').count() == 2)
    };
    let words = line.split_inclusive(is_separator).map(|part| {
        let word = part.trim_end_matches(is_separator);
        if is_secret(word) { part.replacen(word, REMOVED, 1) } else { part.to_owned() }
    });
    let line: String = words.collect();
    match line.split_once("://") {
        Some((scheme, rest)) => {
            let host_ends =
                rest.find(|c: char| c == '/' || c.is_whitespace() || c == '"').unwrap_or(rest.len());
            match rest[..host_ends].rfind('@') {
                Some(at) => format!("{scheme}://{REMOVED}{}", shapes(&rest[at..])),
                None => format!("{scheme}://{}", shapes(rest)),
            }
        }
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PLANTED: &str = "wJalrXUtnFEMI/K7MDENG";

    fn scrubber() -> Scrubber {
        Scrubber::new(&Values(vec![PLANTED.to_owned(), "tiny".to_owned()]))
    }

    #[test]
    fn a_known_value_is_found_wherever_it_is() {
        let encoded = base64(PLANTED);
        let object = json!({
            "metadata": {"annotations": {"note": format!("my key is {PLANTED}!")}},
            "spec": {"args": [format!("--key={PLANTED}")], "nested": [[{"x": encoded}]]},
        });
        let text = scrubber().object(object).to_string();
        assert!(!text.contains(PLANTED) && !text.contains(&encoded), "{text}");
        assert!(scrubber().text("a tiny word").contains("tiny"), "too short to be searched for");
    }

    #[test]
    fn what_is_named_or_shaped_like_a_secret_goes() {
        let object = json!({
            "metadata": {"managedFields": [1], "annotations": {APPLIED: "{\"hidden\": 1}", "kept": "yes"}},
            "env": [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "LOG_LEVEL", "value": "info"},
                {"name": "AWS_SECRET_ACCESS_KEY", "value": "short"}, {"name": "CREDENTIALS_DIR", "value": "/etc"}],
            "secretName": "s3-secret", "automountServiceAccountToken": true, "token": "abc",
        });
        let scrubbed = scrubber().object(object);
        let text = scrubbed.to_string();
        for gone in ["hunter2", "short", "managedFields", "hidden", "abc"] {
            assert!(!text.contains(gone), "{gone} is in {text}");
        }
        for kept in ["DB_PASSWORD", "info", "/etc", "s3-secret", "\"kept\":\"yes\""] {
            assert!(text.contains(kept), "{kept} is not in {text}");
        }
    }

    #[test]
    fn logs_keep_their_words_and_lose_their_secrets() {
        for (line, expected) in [
            ("mounted bucket `b` in 12 ms", "mounted bucket `b` in 12 ms"),
            ("aws_secret_access_key=abc/def next", "aws_secret_access_key=REMOVED next"),
            ("\"secret_access_key\": \"abc\", \"x\": 1", "\"secret_access_key\": \"REMOVED\", \"x\": 1"),
            ("put secret_access_key into the Secret", "put secret_access_key into the Secret"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer REMOVED"),
            ("GET /?X-Amz-Signature=0a1b&x=1", "GET /?X-Amz-Signature=REMOVED&x=1"),
            ("key AKIAIOSFODNN7EXAMPLE denied", "key REMOVED denied"),
            ("proxy http://user:pass@proxy:8080/ is used", "proxy http://REMOVED@proxy:8080/ is used"),
            ("see http://s3.test/a@b", "see http://s3.test/a@b"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nnext",
                "REMOVED\nREMOVED\nREMOVED\nnext",
            ),
        ] {
            assert_eq!(scrubber().text(line), expected);
        }
        let token = format!("eyJ{}.{}.{}", "a".repeat(20), "b".repeat(20), "c".repeat(20));
        assert_eq!(scrubber().text(&format!("token is {token}")), "token is REMOVED");
    }

    #[test]
    fn any_text_survives() {
        for line in
            ["", "password", "password=", "bearer bearer", "ünïcode secret_access_key=ü→ x", "://", "a://@"]
        {
            let _ = scrubber().text(line);
        }
    }
}
