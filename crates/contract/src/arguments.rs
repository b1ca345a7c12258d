//! Mount options as arguments of the mount process. Users write them in many ways; here each has one form, so that no
//! policy about an option can be dodged by its spelling.

use std::collections::BTreeSet;

/// Options that are never passed on, and why.
const STRIPPED: &[&str] = &[
    // Would read credentials that are not the volume's.
    "profile",
    // Requests signed with the installation's keys would go to a server of the volume author's choice.
    "endpoint-url",
    // Would store the volume's data in another bucket.
    "cache-xz",
    // Loses data on general-purpose buckets.
    "incremental-upload",
    // S3-compatible servers know only the standard one.
    "storage-class",
    // Raw mount options of the kernel: the node alone mounts.
    "o",
];

/// Options of a person at a terminal, which mean nothing here and were always ignored.
const DROPPED: &[&str] = &["foreground", "f", "help", "h", "version", "v"];

/// A multimap in canonical form: keys in lower case without dashes, sorted, exact duplicates once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(BTreeSet<(String, Option<String>)>);

impl Arguments {
    /// From the options of a volume: `allow-delete`, `--prefix some/`, `prefix=some/`, `-o x`, in any case.
    pub fn parse<T: AsRef<str>>(options: impl IntoIterator<Item = T>) -> Self {
        let parsed = options.into_iter().map(|option| parse(option.as_ref()));
        Self(parsed.filter(|(key, _)| !key.is_empty() && !DROPPED.contains(&key.as_str())).collect())
    }

    pub fn has(&self, key: &str) -> bool {
        self.values(key).next().is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_deref()))
    }

    /// Every value given for the key; a flag has none.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = Option<&'a str>> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_deref())
    }

    /// The only value of the key.
    pub fn value(&self, key: &str) -> Option<&str> {
        let mut values = self.values(key);
        values.next().flatten().filter(|_| values.next().is_none())
    }

    /// Replaces whatever was given for the key.
    pub fn set(&mut self, key: &str, value: Option<&str>) {
        self.remove(key);
        self.0.insert((key.to_owned(), value.map(str::to_owned)));
    }

    pub fn set_if_absent(&mut self, key: &str, value: Option<&str>) {
        if !self.has(key) {
            self.set(key, value);
        }
    }

    /// Removes the key with all of its values; says whether there was any.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(name, _)| name != key);
        self.0.len() < before
    }

    /// Removes what a volume may not ask for, and names it, so that its owner hears of it.
    pub fn strip(&mut self) -> Vec<&'static str> {
        STRIPPED.iter().copied().filter(|key| self.remove(key)).collect()
    }

    /// For a command line: `--key` or `--key=value`, sorted.
    pub fn render(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(key, value)| {
                let dashes = if key.chars().count() == 1 { "-" } else { "--" };
                value
                    .as_ref()
                    .map_or_else(|| format!("{dashes}{key}"), |value| format!("{dashes}{key}={value}"))
            })
            .collect()
    }
}

/// The first blank or `=` separates key and value.
fn parse(option: &str) -> (String, Option<String>) {
    let option = option.trim();
    let (key, value) = match option.find(|c: char| c == '=' || c.is_whitespace()) {
        Some(at) => {
            let (key, rest) = option.split_at(at);
            let rest = rest.trim_start();
            // `key = value` has blanks around its sign.
            (key, Some(rest.strip_prefix('=').unwrap_or(rest).trim().to_owned()))
        }
        None => (option, None),
    };
    (key.trim_start_matches('-').to_lowercase(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rendered(options: &[&str]) -> Vec<String> {
        Arguments::parse(options).render()
    }

    #[test]
    fn every_spelling_has_one_form() {
        for (given, expected) in [
            ("allow-delete", "--allow-delete"),
            ("--allow-delete", "--allow-delete"),
            ("-allow-delete", "--allow-delete"),
            ("  allow-delete  ", "--allow-delete"),
            ("Allow-Delete", "--allow-delete"),
            ("prefix some/", "--prefix=some/"),
            ("--prefix   some/", "--prefix=some/"),
            ("prefix\tsome/", "--prefix=some/"),
            ("prefix=some/", "--prefix=some/"),
            ("prefix = some/", "--prefix=some/"),
            ("prefix=env=prod/", "--prefix=env=prod/"),
            ("prefix env=prod/", "--prefix=env=prod/"),
            ("prefix=with blank/", "--prefix=with blank/"),
            ("prefix=", "--prefix="),
            ("-o foo", "-o=foo"),
            ("d", "-d"),
        ] {
            assert_eq!(rendered(&[given]), [expected], "{given}");
        }
    }

    #[test]
    fn options_of_a_terminal_are_dropped() {
        assert_eq!(
            rendered(&["--foreground", "-f", "--help", "-h", "--version", "-v", "--", "", "uid=1"]),
            ["--uid=1"]
        );
    }

    #[test]
    fn exact_duplicates_collapse_and_others_stay() {
        assert_eq!(rendered(&["uid=1", "uid 1", "--uid=2"]), ["--uid=1", "--uid=2"]);
    }

    #[test]
    fn a_value_is_only_a_value_if_it_is_the_only_one() {
        let arguments = Arguments::parse(["uid=1", "gid=1", "gid=2", "allow-other"]);
        assert_eq!(arguments.value("uid"), Some("1"));
        assert_eq!(arguments.value("gid"), None);
        assert_eq!(arguments.value("allow-other"), None);
        assert!(arguments.has("allow-other") && arguments.has("gid") && !arguments.has("region"));
    }

    #[test]
    fn setting_replaces_every_value() {
        let mut arguments = Arguments::parse(["gid=1", "gid=2"]);
        arguments.set_if_absent("gid", Some("3"));
        arguments.set_if_absent("uid", Some("4"));
        assert_eq!(arguments.render(), ["--gid=1", "--gid=2", "--uid=4"]);
        arguments.set("gid", Some("5"));
        assert_eq!(arguments.render(), ["--gid=5", "--uid=4"]);
    }

    #[test]
    fn stripping_names_what_it_removed() {
        let mut arguments =
            Arguments::parse(["endpoint-url=http://a", "--Endpoint-URL http://b", "-o x", "uid=1"]);
        assert_eq!(arguments.strip(), ["endpoint-url", "o"]);
        assert_eq!(arguments.render(), ["--uid=1"]);
        assert!(arguments.strip().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_rendered_reads_the_same(options in proptest::collection::vec("[-a-zA-Z= \t,./]{0,12}", 0..6)) {
            let once = Arguments::parse(&options);
            prop_assert_eq!(Arguments::parse(once.render()), once);
        }

        #[test]
        fn no_spelling_gets_past_the_policy(
            key in proptest::sample::select(STRIPPED),
            upper in proptest::collection::vec(any::<bool>(), 20),
            dashes in "-{0,3}",
            separator in "( {0,2}= {0,2}|[ \t]{1,3}|)",
            value in "[a-z]{0,5}",
            blanks in " {0,2}",
        ) {
            let key: String = key.chars().zip(upper).map(|(c, up)| if up { c.to_ascii_uppercase() } else { c }).collect();
            let value = if separator.is_empty() { String::new() } else { value };
            let mut arguments = Arguments::parse([format!("{blanks}{dashes}{key}{separator}{value}{blanks}")]);
            arguments.strip();
            prop_assert_eq!(arguments, Arguments::default());
        }
    }
}
