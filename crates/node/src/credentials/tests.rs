use super::*;
use contract::authentication::SecretPresence;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, symlink};

fn secret(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const INSTANCE: DriverIdentity = DriverIdentity::InstanceProfile { url: String::new() };

/// From the volume through controller and kubelet to the keys.
#[test]
fn the_drivers_keys_serve_only_volumes_that_ask_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let driver = DriverKeys { folder: Some(folder.path().to_owned()) };
    fs::write(folder.path().join("access_key_id"), "DRIVER").unwrap();
    fs::write(folder.path().join("secret_access_key"), "d").unwrap();
    let whose = |attribute: &str, data: Option<&[(&str, &str)]>| {
        let reference = if data.is_some() { SecretPresence::Present } else { SecretPresence::Absent };
        let recorded =
            AuthenticationSource::of_volume(attribute, reference).map_err(|error| error.to_string())?;
        let sent = secret(data.unwrap_or_default());
        let seen = if sent.is_empty() { SecretPresence::Unknown } else { SecretPresence::Present };
        let asked = AuthenticationSource::of_request(attribute, seen).map_err(|error| error.to_string())?;
        let keys = service::keys::of_secret(&sent, "the Secret of nodePublishSecretRef");
        let chosen = choose(asked, Some(recorded), &keys, (&driver, Some(&INSTANCE)));
        Ok::<_, String>(match chosen.map_err(|error| error.to_string())?.0 {
            Choice::Keys(keys) => keys.access_key_id,
            Choice::Workload => "TOKEN".to_owned(),
            Choice::Driver(_) => "INSTANCE".to_owned(),
        })
    };
    let both = [("access_key_id", "OWN"), ("secret_access_key", "o")];
    let blank = [("access_key_id", ""), ("secret_access_key", "")];
    let other = [("password", "x")];
    let (own, drivers, token, refused) = (Some("OWN"), Some("DRIVER"), Some("TOKEN"), None);
    for (attribute, data, expected) in [
        ("", None, drivers),
        ("", Some(&both[..]), own),
        ("", Some(&[][..]), refused),
        ("", Some(&both[..1]), refused),
        ("", Some(&blank), refused),
        ("", Some(&other), refused),
        ("secret", None, refused),
        ("secret", Some(&both), own),
        ("secret", Some(&[]), refused),
        ("secret", Some(&both[..1]), refused),
        ("secret", Some(&blank), refused),
        ("secret", Some(&other), refused),
        // Explicit, by someone who may write volumes: the content of the Secret changes nothing.
        ("driver", None, drivers),
        ("driver", Some(&both), drivers),
        ("driver", Some(&[]), drivers),
        ("driver", Some(&both[..1]), drivers),
        ("pod", None, token),
        ("pod", Some(&both), token),
    ] {
        let found = whose(attribute, data);
        assert_eq!(found.as_deref().ok(), expected, "{attribute:?} {data:?}: {found:?}");
        if let (Err(error), "" | "secret") = (&found, attribute) {
            assert!(error.contains("nodePublishSecretRef"), "{error}");
        }
    }
}

/// One of the reference driver, to which the controller has not got yet.
#[test]
fn a_mountpoint_pod_without_a_record_gets_only_what_the_request_shows() {
    let nothing = DriverKeys { folder: Some("/nowhere".into()) };
    let own = secret(&[("access_key_id", "OWN"), ("secret_access_key", "o")]);
    let own = service::keys::of_secret(&own, "the Secret of nodePublishSecretRef");
    let chosen = |asked, recorded| choose(asked, recorded, &own, (&nothing, Some(&INSTANCE)));
    let source = |asked, recorded| chosen(asked, recorded).map(|(_, source)| source);
    let (driver, secret) = (AuthenticationSource::Driver, AuthenticationSource::Secret);
    assert_eq!(source(Some(secret), None).unwrap(), secret);
    let (choice, _) = chosen(Some(driver), None).unwrap();
    assert!(matches!(choice, Choice::Driver(_)), "without static keys, the driver's identity");
    assert_eq!(source(None, Some(driver)).unwrap(), driver);
    assert_eq!(source(None, Some(secret)).unwrap(), secret);
    let refused = source(None, None).unwrap_err();
    assert!(matches!(refused, CredentialsError::Unrecorded));
    assert!(refused.to_string().contains("`s3.csi.scality.com/authentication-source`"), "{refused}");
    let without = choose(Some(driver), None, &own, (&nothing, None));
    assert!(matches!(without, Err(CredentialsError::NoDriverKeys)));
}

#[test]
fn files_are_private_whole_and_behind_no_link() {
    let comm = tempfile::tempdir().unwrap();
    let folder = rustix::fs::open(comm.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let keys = Keys {
        access_key_id: "A".into(),
        secret_access_key: "B".into(),
        session_token: Some("C".into()),
        expires: None,
    };
    assert!(write_static_keys(&folder, "mp-1", &keys).unwrap());
    assert!(!write_static_keys(&folder, "mp-1", &keys).unwrap(), "nothing has changed");
    let file = comm.path().join("credentials/mp-1");
    let text = "[s3-csi]\naws_access_key_id=A\naws_secret_access_key=B\naws_session_token=C\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    assert!(write_token(&folder, "mp-1", "one").unwrap() && write_token(&folder, "mp-1", "two").unwrap());
    let token = comm.path().join(token_file("mp-1"));
    assert_eq!(
        (fs::read_to_string(&token).unwrap().as_str(), fs::metadata(&token).unwrap().mode() & 0o777),
        ("two", 0o640)
    );
    fs::write(comm.path().join("credentials/.mp-1"), "left by a killed process").unwrap();
    fs::write(comm.path().join("credentials/uid-volume-s3-csi-credentials"), "of the reference").unwrap();
    remove(&folder).unwrap();
    remove(&folder).unwrap();
    assert!(!comm.path().join("credentials").exists());

    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), comm.path().join("credentials")).unwrap();
    assert!(write_static_keys(&folder, "mp-1", &keys).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
