//! What may come in with dependencies: licences, crates and sources. (A program for this exists, but compiling it takes a newcomer
//! longer than compiling the driver.)

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::Cache;
use crate::cargo::cargo;
use crate::command::capture;

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// One TLS provider in the whole graph: rustls panics at its first use when it finds two. Ours is ring.
const BANNED: &[&str] = &["aws-lc-rs", "native-tls", "openssl"];

/// As `Cargo.lock` has it.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The graph for every platform that images are built for, with all features.
pub(super) fn check(cache: &Cache) -> Result<()> {
    let metadata = capture(cargo(cache).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
        "--filter-platform=x86_64-unknown-linux-gnu",
        "--filter-platform=aarch64-unknown-linux-gnu",
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata shows no packages")?;
    let complaints: Vec<String> = packages.iter().flat_map(complaints).collect();
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    Ok(())
}

fn complaints(package: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&package["name"]);
    let mut found = Vec::new();
    if package["source"].is_null() {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let any = dependencies.filter(|it| it["req"] == "*" && it["path"].is_null());
        found.extend(any.map(|it| format!("{name}: any version of {} would do: name one", it["name"])));
        return found;
    }
    if BANNED.contains(&name.as_str()) {
        found.push(format!("{name} is banned"));
    }
    if package["source"] != SOURCE {
        found.push(format!("{name} comes from {}", package["source"]));
    }
    let licence = text(&package["license"]);
    if !is_allowed(&licence) {
        found.push(format!("{name} has the licence \"{licence}\""));
    }
    found
}

/// Whether we may take the offer: `(MIT OR Apache-2.0) AND Unicode-3.0`. Old crates write `MIT/Apache-2.0` for a choice.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    choice(&mut words) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn choice(words: &mut Words<'_>) -> bool {
    let mut allowed = all(words);
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words);
    }
    allowed
}

fn all(words: &mut Words<'_>) -> bool {
    let mut allowed = one(words);
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words);
    }
    allowed
}

fn one(words: &mut Words<'_>) -> bool {
    match words.next() {
        Some("(") => choice(words) & (words.next() == Some(")")),
        Some(name) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().unwrap_or_default();
            LICENCES.contains(&format!("{name} WITH {exception}").as_str())
        }
        name => name.is_some_and(|name| LICENCES.contains(&name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn offers_are_read_as_they_are_meant() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT",
            "MIT MIT",
            "MIT WITH LLVM-exception",
            "GPL-3.0 AND (MIT OR ISC)",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn each_rule_has_its_complaint() {
        let fine = json!({"name": "a", "source": SOURCE, "license": "MIT"});
        assert_eq!(complaints(&fine), [""; 0]);
        for (key, value) in
            [("name", "openssl"), ("source", "git+https://example.com/a"), ("license", "GPL-3.0")]
        {
            let mut other = fine.clone();
            other[key] = json!(value);
            assert_eq!(complaints(&other).len(), 1, "{other}");
        }
        let ours = |dependency: Value| json!({"name": "ours", "source": null, "dependencies": [dependency]});
        assert_eq!(complaints(&ours(json!({"name": "b", "req": "*", "path": "/b"}))), [""; 0]);
        assert_eq!(complaints(&ours(json!({"name": "b", "req": "*"}))).len(), 1);
    }
}
