//! The part of a shared bucket that belongs to one claim. A [`Prefix`] can name neither the whole bucket nor anything
//! outside of itself.

use thiserror::Error;

use super::template::{Field, Part, Subject, Template, TemplateError};

/// S3's keys end at 1024 bytes; most of them are for the files.
const LONGEST_BYTES: usize = 256;
/// Characters, besides letters and digits, that no tool has to quote.
const OTHERS: &str = "-_.=+@";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PrefixError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("invalid `prefix`: it resolves to an empty string, which would be the whole bucket")]
    Empty,
    #[error("invalid `prefix` \"{0}\": no segment may be empty, `.` or `..`")]
    Segment(String),
    #[error("invalid `prefix` \"{0}\": use letters, digits and any of {OTHERS}")]
    Character(String),
    #[error("invalid `prefix`: it resolves to {0} bytes, at most {LONGEST_BYTES} are allowed")]
    Long(usize),
    #[error(
        "invalid `prefix`: several claims would share it; add ${{pv.name}}, or ${{pvc.namespace}} and ${{pvc.name}} with a \
         `/` between them"
    )]
    Shared,
    #[error(
        "invalid `prefix`: add ${{pv.name}}, because with `deletionPolicy: delete-objects` a claim that is created again \
         under the same name would lose its objects when the first one is deleted"
    )]
    Reused,
}

/// Ends in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    /// With or without its last `/`.
    pub fn parse(text: &str) -> Result<Self, PrefixError> {
        let text = text.strip_suffix('/').unwrap_or(text);
        if text.is_empty() {
            return Err(PrefixError::Empty);
        }
        if text.len() >= LONGEST_BYTES {
            return Err(PrefixError::Long(text.len() + 1));
        }
        if text.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(PrefixError::Segment(text.to_owned()));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '/' || OTHERS.contains(c);
        if !text.chars().all(legal) {
            return Err(PrefixError::Character(text.to_owned()));
        }
        Ok(Self(format!("{text}/")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it contains the object with this key.
    pub fn contains(&self, key: &str) -> bool {
        key.starts_with(&self.0)
    }
}

/// Resolves to a prefix for each claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixTemplate(Template);

impl PrefixTemplate {
    /// `unique`: even a claim that is created again under its old name must get another prefix.
    pub fn parse(text: &str, unique: bool) -> Result<Self, PrefixError> {
        let template = Template::parse(Field::Prefix, text)?;
        let has = |part: &Part| template.parts().contains(part);
        if unique && !has(&Part::VolumeName) {
            return Err(PrefixError::Reused);
        }
        if !has(&Part::VolumeName) && !separated(template.parts()) {
            return Err(PrefixError::Shared);
        }
        // Names are never empty: what is wrong with the text around them is wrong for every claim.
        let template = Self(template);
        let annotations = std::collections::BTreeMap::new();
        template.resolve(&Subject {
            volume_name: "v",
            namespace: "n",
            name: "c",
            annotations: &annotations,
        })?;
        Ok(template)
    }

    pub fn resolve(&self, subject: &Subject<'_>) -> Result<Prefix, PrefixError> {
        Prefix::parse(&self.0.resolve(subject)?)
    }
}

/// Whether namespace and name are in different segments: `a-b` and `c` must not resolve to the same as `a` and `b-c`.
fn separated(parts: &[Part]) -> bool {
    let mut segment = 0;
    let (mut namespaces, mut names) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) => segment += text.matches('/').count(),
            Part::ClaimNamespace => namespaces.push(segment),
            Part::ClaimName => names.push(segment),
            Part::VolumeName | Part::ClaimAnnotation(_) => {}
        }
    }
    let alone = |own: &[usize], others: &[usize]| own.iter().any(|segment| !others.contains(segment));
    alone(&namespaces, &names) && alone(&names, &namespaces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_reaches_outside_is_refused() {
        for text in
            ["", "/", "//", ".", "..", "../", "a/..", "a/../b", "./a", "/a", "a//b", "a/b//", "a b", "ä"]
        {
            assert!(Prefix::parse(text).is_err(), "{text}");
        }
        assert!(Prefix::parse(&"a".repeat(LONGEST_BYTES)).is_err());
        assert_eq!(Prefix::parse("a/b=c").unwrap().as_str(), "a/b=c/");
        assert_eq!(Prefix::parse("a/").unwrap().as_str(), "a/");
    }

    #[test]
    fn claims_do_not_share() {
        for text in
            ["data", "${pvc.name}", "${pvc.namespace}", "${pvc.namespace}-${pvc.name}", "x/${pvc.name}"]
        {
            assert_eq!(PrefixTemplate::parse(text, false), Err(PrefixError::Shared), "{text}");
        }
        for text in ["${pv.name}", "${pvc.namespace}/${pvc.name}", "t/${pvc.name}/${pvc.namespace}/x"] {
            assert!(PrefixTemplate::parse(text, false).is_ok(), "{text}");
        }
        let named = PrefixTemplate::parse("${pvc.namespace}/${pvc.name}", true);
        assert_eq!(named, Err(PrefixError::Reused));
        assert!(PrefixTemplate::parse("/${pv.name}", true).is_err());
        assert!(PrefixTemplate::parse("../${pv.name}", true).is_err());
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?"
    }

    proptest! {
        /// Whatever a template and the names in it are: no prefix, or one that ends in `/`, is not the whole bucket, and
        /// whose keys stay below it however a file system would read them.
        #[test]
        fn no_template_reaches_outside(
            text in "(\\$\\{pv.name\\}|\\$\\{pvc.name\\}|\\$\\{pvc.namespace\\}|[a-z/.$ ]){0,6}",
            volume_name in "[a-z/.]{0,4}", namespace in "[a-z/.]{0,4}", claim in "[a-z/.]{0,4}", unique: bool,
        ) {
            let annotations = BTreeMap::new();
            let subject = Subject { volume_name: &volume_name, namespace: &namespace, name: &claim, annotations: &annotations };
            if let Ok(prefix) = PrefixTemplate::parse(&text, unique).and_then(|template| template.resolve(&subject)) {
                let inner = prefix.as_str().strip_suffix('/').unwrap();
                prop_assert!(!inner.is_empty());
                prop_assert!(inner.split('/').all(|segment| !segment.is_empty() && segment != "." && segment != ".."));
                let file = format!("{}file", prefix.as_str());
                prop_assert!(prefix.contains(&file));
                prop_assert!(!prefix.contains(inner));
                let neighbour = format!("{inner}x/file");
                prop_assert!(!prefix.contains(&neighbour));
            }
        }

        /// Two claims of one class never have the same prefix, and none is below another's.
        #[test]
        fn prefixes_of_one_class_are_apart(
            text in "(\\$\\{pvc.name\\}|\\$\\{pvc.namespace\\}|[a/-]){1,6}",
            one in (name(), name()), other in (name(), name()),
        ) {
            prop_assume!(one != other);
            let Ok(template) = PrefixTemplate::parse(&text, false) else { return Ok(()) };
            let annotations = BTreeMap::new();
            let prefix = |claim: &(String, String)| {
                template.resolve(&Subject { volume_name: "v", namespace: &claim.0, name: &claim.1, annotations: &annotations })
            };
            if let (Ok(one), Ok(other)) = (prefix(&one), prefix(&other)) {
                prop_assert!(!one.contains(other.as_str()) && !other.contains(one.as_str()), "{one:?} {other:?}");
            }
        }
    }
}
