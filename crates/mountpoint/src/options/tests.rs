use std::time::Duration;

use super::*;
use contract::arguments::Arguments;
use contract::options::Value;
use proptest::prelude::*;
use proptest::sample::Index;

fn read(arguments: &[&str]) -> Result<Invocation, Refused> {
    let all = ["s3-csi-mountpoint", "bucket", "/dev/fd/0"].iter().chain(arguments);
    Options::read(all.map(OsString::from))
}

fn options(arguments: &[&str]) -> Box<Options> {
    match read(arguments) {
        Ok(Invocation::Serve(options)) => options,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn refusal(arguments: &[&str]) -> (Code, String) {
    let refused = read(arguments).unwrap_err();
    (refused.code, refused.message)
}

#[test]
fn defaults_are_those_of_mount_s3() {
    let options = options(&["--foreground"]);
    assert_eq!(options.part_sizes(), (8_388_608, 8_388_608));
    assert_eq!(options.max_threads, 16);
    assert_eq!(options.server_timeout(), Duration::from_mins(2), "not an option of `mount-s3`");
    assert!(matches!(options.metadata_ttl(), TimeToLive::Minimal));
    assert!(!options.allow_delete && !options.allow_overwrite && !options.read_only);
    assert!(options.personality().is_none());
}

#[test]
fn what_is_known_answers_for_other_lookups_unless_that_is_turned_off() {
    let seconds = |arguments: &[&str]| options(arguments).known_for().map(|known| known.as_secs_f32());
    assert_eq!(seconds(&[]), Some(0.9));
    assert_eq!(seconds(&["--metadata-ttl=minimal"]), None);
    assert_eq!(seconds(&["--metadata-ttl=0"]), None);
    assert_eq!(seconds(&["--metadata-ttl=5"]), Some(5.0));
    assert_eq!(seconds(&["--cache=/c"]), Some(60.0));
    assert_eq!(seconds(&["--cache=/c", "--max-cache-size=0"]), Some(0.9), "it is turned off");
    assert!(options(&["--metadata-ttl=indefinite"]).known_for() > Some(Duration::from_hours(1000)));
}

#[test]
fn a_cache_raises_the_ttl_unless_it_is_given() {
    let ttl = |arguments: &[&str]| options(arguments).metadata_ttl().to_string();
    assert_eq!(ttl(&["--cache=/c"]), "60s");
    assert_eq!(ttl(&["--cache=/c", "--metadata-ttl=5"]), "5s");
    assert_eq!(ttl(&["--cache=/c", "--metadata-ttl=0"]), "minimal");
    assert_eq!(ttl(&["--metadata-ttl=indefinite"]), "indefinite");
}

#[test]
fn the_prefix_ends_in_a_slash() {
    assert_eq!(options(&["--prefix=some/"]).path().unwrap().prefix.as_str(), "some/");
    let (code, message) = refusal(&["--prefix=some"]);
    assert_eq!(code, Code::BadPrefix);
    assert_eq!(message, "invalid `prefix` `some`: it must end in '/': write `some/`");
    let uri = Options::read(["x", "s3://bucket/some/", "/dev/fd/0", "--prefix=a/"].map(OsString::from));
    assert!(uri.unwrap_err().message.contains("given twice"));
}

#[test]
fn invalid_options_are_refused_by_name() {
    for (arguments, words) in [
        (&["--auto-unmount"][..], "`auto-unmount` is not available for volumes"),
        (&["-o", "ro"], "`-o` is not available for volumes"),
        (&["--allow-root", "--allow-other"], "'--allow-root' cannot be used with '--allow-other'"),
        (&["--uid=0"], "invalid value '0' for '--uid <UID>'"),
        (&["--uid=me"], "invalid value 'me' for '--uid <UID>'"),
        (&["--dir-mode=1777"], "at most 777"),
        (&["--file-mode=rw"], "octal number"),
        (&["--memory-target=100"], "a number from 512"),
        (&["--part-size=8388608", "--read-part-size=9999999"], "cannot be used with"),
        (&["--max-cache-size=5"], "--cache"),
        (&["--sse=rot13"], "possible values: aws:kms, aws:kms:dsse, AES256"),
        (&["--sse=AES256", "--sse-kms-key-id=arn:aws:kms:eu-1:1:key/k"], "cannot be used with sse=AES256"),
        (&["--sse=aws:kms", "--sse-kms-key-id=alias/k"], "ARN of a key"),
        (&["--bucket-type=round"], "general-purpose, directory"),
        (&["--metadata-ttl=soon"], "`minimal`, `indefinite` or seconds"),
        (&["--upload-checksums=md5"], "crc32c, crc64nvme, off"),
        (&["--no-log", "--debug"], "cannot be used with"),
        (&["--allow-deletes"], "unexpected argument '--allow-deletes' found"),
        (&["--region=a", "--region=b"], "cannot be used multiple times"),
        (&["--otlp-export-interval=5"], "--otlp-endpoint"),
    ] {
        let (code, message) = refusal(arguments);
        assert_eq!(code, Code::BadOption, "{arguments:?}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert!(!message.contains("Usage") && !message.contains('\n'), "{message}");
    }
}

/// All but the one that becomes a variable.
fn arguments_of_the_table() -> impl Iterator<Item = MountOption> {
    MountOption::ALL.iter().copied().filter(|option| *option != MountOption::AwsMaxAttempts)
}

proptest! {
    /// Controller and node refuse by the table what this process would refuse after it was started, and nothing else.
    #[test]
    fn the_rules_of_the_controller_and_the_node_are_those_of_this_process(
        options in proptest::collection::vec((any::<Index>(), proptest::sample::select(VALUES)), 1..4),
    ) {
        let set_by_the_node = |option: &MountOption| option.value() == Value::Overridden;
        let table: Vec<&str> = arguments_of_the_table().filter(|option| !set_by_the_node(option)).map(Into::into).collect();
        let names = table.iter().chain(&["d", "l", "allow-deletes"]);
        let names: Vec<&str> = names.copied().collect();
        let options = options.iter().map(|(option, value)| {
            let name = option.get(&names);
            value.map_or_else(|| (*name).to_owned(), |value| format!("{name}={value}"))
        });
        let arguments = Arguments::parse(options);
        let rendered = arguments.render();
        let rendered: Vec<&str> = rendered.iter().map(String::as_str).collect();
        let by_the_table = contract::options::check(&arguments, false).map_err(|error| error.to_string());
        let here = read(&rendered).map(drop).map_err(|refused| refused.message);
        prop_assert_eq!(by_the_table.is_ok(), here.is_ok(), "{:?}: {:?}, {:?}", rendered, by_the_table, here);
    }
}

/// Some for each kind, right and wrong.
const VALUES: &[Option<&str>] = &[
    None,
    None,
    Some(""),
    Some("0"),
    Some("1"),
    Some("512"),
    Some("770"),
    Some("1777"),
    Some("8388608"),
    Some("4294967296"),
    Some("99999999999999999999"),
    Some("-1"),
    Some("abc"),
    Some("abc/"),
    Some("minimal"),
    Some("AES256"),
    Some("aws:kms"),
    Some("arn:aws:kms:eu-1:1:key/k"),
    Some("crc32c"),
    Some("directory"),
];

#[test]
fn the_table_has_every_option_that_a_volume_can_set() {
    let table = arguments_of_the_table().map(Into::<&str>::into);
    let command = <Options as clap::CommandFactory>::command();
    let here = command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(|it| it.get_long());
    // Removed by the node.
    let mut here = Arguments::parse(here);
    contract::options::take_ignored(&mut here);
    assert_eq!(here, Arguments::parse(table));
}

#[test]
fn buckets_are_checked() {
    let code = |bucket: &str| {
        Options::read(["x", bucket, "/dev/fd/0"].map(OsString::from)).map_err(|error| error.code)
    };
    assert!(code("b/b").is_err_and(|code| code == Code::BadOption));
    assert!(code("bu").is_err_and(|code| code == Code::BadOption));
    assert!(code("s3://bucket/prefix").is_err_and(|code| code == Code::BadOption));
    assert!(code("arn:aws:s3:us-east-1:1:accesspoint/a").is_ok());
}

#[test]
fn every_option_has_a_help_text() {
    let Ok(Invocation::Print(help)) = read(&["--help"]) else { panic!() };
    for option in
        <Options as clap::CommandFactory>::command().get_arguments().filter(|option| !option.is_hide_set())
    {
        let id = option.get_id().as_str();
        assert!(option.get_help().is_some() || ["help", "version"].contains(&id), "{id}");
        let long = option.get_long().map(|long| format!("--{long}"));
        assert!(long.is_none_or(|long| help.contains(&long)), "{id}");
    }
}

const SEEDS: &[&str] = &[
    include_str!("../../seeds/cached"),
    include_str!("../../seeds/encrypted"),
    include_str!("../../seeds/refused"),
    include_str!("../../seeds/talkative"),
    include_str!("../../seeds/typical"),
];

/// Seeds with words changed and inserted; the suite sets for how long.
#[test]
fn fuzz() {
    let seconds = std::env::var("S3_CSI_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    let word = "(--?[a-z-]{0,12}(=.{0,12})?|.{0,12}|[0-9]{1,25})";
    let changes = proptest::collection::vec((any::<Index>(), word, any::<bool>()), 0..4);
    let input = (proptest::sample::select(SEEDS), changes);
    let mut runner = proptest::test_runner::TestRunner::default();
    while std::time::Instant::now() < until {
        let outcome = runner.run(&input, |(seed, changes)| {
            let mut words: Vec<String> = seed.lines().map(str::to_owned).collect();
            for (place, word, insert) in changes {
                let at = place.index(words.len());
                if insert {
                    words.insert(at, word);
                } else {
                    words[at] = word;
                }
            }
            let words = ["s3-csi-mountpoint".to_owned()].into_iter().chain(words);
            match Options::read(words.map(OsString::from)) {
                Ok(Invocation::Serve(options)) => prop_assert!(options.path().is_ok()),
                Ok(Invocation::Print(text)) => prop_assert!(!text.is_empty()),
                Err(refused) => prop_assert!(!refused.message.is_empty() && !refused.message.contains('\n')),
            }
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn the_committed_help_is_current() {
    let path = "../../docs/flags/s3-csi-mountpoint.txt";
    let help = <Options as clap::CommandFactory>::command().term_width(100).render_long_help();
    let current = help.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n";
    if std::env::var_os("S3_CSI_GENERATE").is_some() {
        std::fs::write(path, &current).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), current, "run `cargo xtask gen`");
}

#[test]
fn ca_bundle_can_only_be_a_file_of_the_driver() {
    options(&["--ca-bundle=/etc/s3-csi/authority/ca-bundle.crt"]);
    for file in [
        "/etc/passwd",
        "/etc/s3-csi/authority",
        "/etc/s3-csi/authority/../../passwd",
        "/etc/s3-csi/authority-of-another/file",
        "etc/s3-csi/authority/ca-bundle.crt",
        "/proc/self/environ",
    ] {
        let (code, message) = refusal(&[&format!("--ca-bundle={file}")]);
        assert_eq!(code, Code::BadOption);
        assert!(message.contains(file) && message.contains("tls.caCertConfigMap"), "{message}");
    }
}
