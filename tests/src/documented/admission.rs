//! The lists of the chart's admission policies are those of the code.

use std::collections::BTreeMap;
use std::fs;

use contract::authentication::AuthenticationSource;
use contract::options::{EXCLUSIVE, IgnoredOption, MountOption, TERMINAL_OPTIONS, Value};
use contract::s3::{REGION_PATTERN, REGIONS};
use contract::volume::{BUCKET_PATTERN, BUCKETS, attribute};
use controller::provision::class::parameters::{self, SECRETS, WITHOUT_EFFECT, known};
use controller::provision::new_volume::DYNAMIC;
use controller::provision::volume_id::{self, DeletionPolicy, LONGEST_NAME_PREFIX};
use serde_json::json;

use super::root;

/// Its long name, and its short one if it has any.
fn names(option: MountOption) -> Vec<String> {
    let short = ('a'..='z').map(String::from).filter(|letter| MountOption::find(letter) == Some(option));
    [option.to_string()].into_iter().chain(short).collect()
}

fn options(wanted: impl Fn(&Value) -> bool) -> Vec<String> {
    let wanted = MountOption::ALL.iter().filter(|option| wanted(&option.value()));
    wanted.flat_map(|option| names(*option)).collect()
}

/// Pattern and description of each option that does not take every value.
fn option_values() -> BTreeMap<String, [String; 2]> {
    let described = MountOption::ALL.iter().filter_map(|option| {
        let value = option.value();
        Some((names(*option), [value.pattern()?, value.allowed()]))
    });
    described.flat_map(|(names, value)| names.into_iter().map(move |name| (name, value.clone()))).collect()
}

fn lists() -> serde_json::Value {
    let ignored: Vec<&str> = IgnoredOption::ALL.iter().map(AsRef::as_ref).collect();
    let all = options(|_| true).into_iter();
    let all = all.chain(ignored.iter().chain(TERMINAL_OPTIONS).map(|option| (*option).to_owned()));
    let pairs = EXCLUSIVE.iter().flat_map(|(one, other)| {
        names(*one)
            .into_iter()
            .flat_map(|one| names(*other).into_iter().map(move |other| [one.clone(), other]))
    });
    let secrets = SECRETS.map(|(name, _)| name.key().strip_suffix("-name").unwrap());
    // Without the attribute, the driver's keys are used, or those of the volume's Secret.
    let sources = AuthenticationSource::ALL.iter().map(|source| source.as_str()).chain([""]);
    let (sources, attributes): (Vec<&str>, Vec<&str>) =
        (sources.collect(), attribute::ALL.iter().copied().chain([DYNAMIC]).collect());
    let name_prefixes = format!("use up to {LONGEST_NAME_PREFIX} lower-case letters, digits and dashes");
    json!({
        "attributes": attributes,
        "attributeValues": {
            attribute::BUCKET_NAME: [BUCKET_PATTERN, BUCKETS],
            attribute::STS_REGION: [REGION_PATTERN, REGIONS],
        },
        "sources": sources,
        "parameters": known(),
        "parameterValues": {
            parameters::BUCKET_NAME: [volume_id::BUCKET_PATTERN, volume_id::BUCKET_NAMES],
            parameters::BUCKET_NAME_PREFIX: [volume_id::NAME_PREFIX_PATTERN, &name_prefixes],
            parameters::REGION: [REGION_PATTERN, REGIONS],
        },
        "parametersWithoutEffect": WITHOUT_EFFECT,
        "secrets": secrets,
        "deletionPolicies": DeletionPolicy::ALL.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "options": {
            "all": all.collect::<Vec<_>>(),
            "ignored": ignored,
            "flags": options(|value| *value == Value::Flag),
            "valued": options(|value| !matches!(value, Value::Flag | Value::Overridden)),
            "exclusive": pairs.collect::<Vec<_>>(),
            "values": option_values(),
        },
    })
}

/// `cargo xtask gen` writes it.
#[test]
fn the_committed_lists_of_the_admission_policies_are_current() {
    let path = root().join("charts/s3-csi/admission/known.yaml");
    let current = format!(
        "# Generated from the code by `cargo xtask gen`: what the driver knows of volumes and classes.\n{:#}\n",
        lists()
    );
    if std::env::var_os("S3_CSI_GENERATE").is_some() {
        fs::write(&path, &current).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap_or_default(), current, "run `cargo xtask gen`");
}
