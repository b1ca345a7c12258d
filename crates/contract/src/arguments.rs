//! Mount options as arguments of the mount process. Users spell them in many ways; here each has one form, so that no
//! spelling gets around a policy.

use std::collections::BTreeSet;

use crate::mount_option::MountOption;

/// A multimap in canonical form: keys in lower case without dashes, sorted, exact duplicates once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(BTreeSet<(String, Option<String>)>);

impl Arguments {
    /// From the options of a volume: `allow-delete`, `--prefix some/`, `prefix=some/`, `-o x`, in any case.
    pub fn parse<T: AsRef<str>>(options: impl IntoIterator<Item = T>) -> Self {
        let parsed = options.into_iter().map(|option| parse(option.as_ref()));
        Self(parsed.filter(|(key, _)| !key.is_empty()).collect())
    }

    pub fn has(&self, option: MountOption) -> bool {
        self.values(option).next().is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_deref()))
    }

    /// Every value given for the option; a flag has none.
    pub fn values(&self, option: MountOption) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().filter(move |(name, _)| name == option.as_ref()).map(|(_, value)| value.as_deref())
    }

    /// The only value of the option.
    pub fn value(&self, option: MountOption) -> Option<&str> {
        let mut values = self.values(option);
        values.next().flatten().filter(|_| values.next().is_none())
    }

    /// Replaces whatever was given for the option.
    pub fn set(&mut self, option: MountOption, value: Option<&str>) {
        self.remove(option);
        self.0.insert((option.to_string(), value.map(str::to_owned)));
    }

    pub fn set_if_absent(&mut self, option: MountOption, value: Option<&str>) {
        if !self.has(option) {
            self.set(option, value);
        }
    }

    /// Removes the key with all of its values, be it a known option or not; returns whether there was any.
    pub fn remove(&mut self, key: impl AsRef<str>) -> bool {
        let before = self.0.len();
        self.0.retain(|(name, _)| name != key.as_ref());
        self.0.len() < before
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
    fn exact_duplicates_collapse_and_others_stay() {
        assert_eq!(rendered(&["uid=1", "uid 1", "--uid=2"]), ["--uid=1", "--uid=2"]);
    }

    #[test]
    fn a_value_is_only_a_value_if_it_is_the_only_one() {
        let arguments = Arguments::parse(["uid=1", "gid=1", "gid=2", "allow-other"]);
        assert_eq!(arguments.value(MountOption::Uid), Some("1"));
        assert_eq!(arguments.value(MountOption::Gid), None);
        assert_eq!(arguments.value(MountOption::AllowOther), None);
        assert!(
            arguments.has(MountOption::AllowOther)
                && arguments.has(MountOption::Gid)
                && !arguments.has(MountOption::Region)
        );
    }

    #[test]
    fn setting_replaces_every_value() {
        let mut arguments = Arguments::parse(["gid=1", "gid=2"]);
        arguments.set_if_absent(MountOption::Gid, Some("3"));
        arguments.set_if_absent(MountOption::Uid, Some("4"));
        assert_eq!(arguments.render(), ["--gid=1", "--gid=2", "--uid=4"]);
        arguments.set(MountOption::Gid, Some("5"));
        assert_eq!(arguments.render(), ["--gid=5", "--uid=4"]);
    }

    proptest! {
        #[test]
        fn what_is_rendered_reads_the_same(options in proptest::collection::vec("[-a-zA-Z= \t,./]{0,12}", 0..6)) {
            let once = Arguments::parse(&options);
            prop_assert_eq!(Arguments::parse(once.render()), once);
        }
    }
}
