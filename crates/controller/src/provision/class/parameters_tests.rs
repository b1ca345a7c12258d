use super::*;

const SERVER: &str = "http://s3.test";

fn plan(parameters: &[(&str, &str)], options: &[&str]) -> Result<ClassParameters, ClassError> {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    ClassParameters::parse(&parameters, &options, SERVER)
}

fn refused(parameters: &[(&str, &str)], options: &[&str]) -> String {
    plan(parameters, options).unwrap_err().to_string()
}

#[test]
fn a_class_needs_no_parameters() {
    let plan = plan(&[], &["allow-delete"]).unwrap();
    assert_eq!(plan.placement, Placement::Bucket { name_prefix: None, deletion: DeletionPolicy::Retain });
    assert_eq!(
        (plan.region, plan.provisioner_secret, plan.mount_options),
        (None, None, vec!["allow-delete".into()])
    );
}

#[test]
fn no_key_is_ignored() {
    let error = refused(&[("bucketnameprefix", "x")], &[]);
    assert!(
        error.starts_with("unknown parameter `bucketnameprefix`; known parameters: bucketName, "),
        "{error}"
    );
    for key in OWN.iter().chain(attribute::ALL) {
        assert!(error.contains(key), "{key} is not in: {error}");
    }
    assert!(plan(&[("csi.storage.k8s.io/pvc/name", "data")], &[]).is_ok());
    assert_eq!(plan(&WITHOUT_EFFECT.iter().map(|key| (*key, "x")).collect::<Vec<_>>(), &[]), plan(&[], &[]));
    assert!(refused(&[("csi.storage.k8s.io/fsType", "ext4")], &[]).starts_with("unknown parameter"));
    for key in OWN {
        assert!(refused(&[(key, " ")], &[]).contains("is empty"), "{key}");
    }
}

#[test]
fn buckets_get_names_that_they_can_have() {
    let named = plan(&[(BUCKET_NAME_PREFIX, "team-a-")], &[]).unwrap();
    assert_eq!(
        named.placement,
        Placement::Bucket { name_prefix: Some("team-a".into()), deletion: DeletionPolicy::Retain }
    );
    for wrong in ["Team", "a.b", "-", "a_b", "twenty-characters-abc"] {
        assert!(refused(&[(BUCKET_NAME_PREFIX, wrong)], &[]).contains("bucketNamePrefix"), "{wrong}");
    }
    for wrong in ["ab", "My_Bucket", "a/b", "..."] {
        assert!(refused(&[(BUCKET_NAME, wrong)], &[]).starts_with("invalid `bucketName`"), "{wrong}");
    }
    assert!(
        refused(&[(BUCKET_NAME, "shared"), (BUCKET_NAME_PREFIX, "a")], &[]).contains("mutually exclusive")
    );
}

#[test]
fn a_class_with_a_bucket_gives_each_claim_a_prefix() {
    let Placement::Prefix { bucket, deletion, .. } = plan(&[(BUCKET_NAME, "shared")], &[]).unwrap().placement
    else {
        panic!("not a prefix");
    };
    assert_eq!((bucket.as_str(), deletion), ("shared", DeletionPolicy::Retain));
    let with = |key, value| plan(&[(BUCKET_NAME, "shared"), (key, value)], &[]);
    assert!(with(PREFIX, "${pvc.namespace}/${pvc.name}").is_ok());
    assert!(with(DELETION_POLICY, "delete-objects").is_ok());
    assert_eq!(with(DELETION_POLICY, "delete"), Err(ClassError::DeletionPolicy("delete".into())));
    assert_eq!(with(PREFIX, "data"), Err(PrefixError::Shared.into()));
    let both = [
        (BUCKET_NAME, "shared"),
        (DELETION_POLICY, "delete-objects"),
        (PREFIX, "${pvc.namespace}/${pvc.name}"),
    ];
    assert_eq!(plan(&both, &[]), Err(PrefixError::Reused.into()));
    assert_eq!(plan(&[(PREFIX, "${pv.name}")], &[]), Err(ClassError::NeedsBucket(PREFIX)));
    assert_eq!(plan(&[(BUCKET_NAME, "shared")], &["--prefix x/"]), Err(ClassError::MountOption(PREFIX)));
}

#[test]
fn a_bucket_of_its_own_may_go_with_its_objects() {
    let emptied = plan(&[(DELETION_POLICY, "delete-objects")], &[]).unwrap();
    assert_eq!(
        emptied.placement,
        Placement::Bucket { name_prefix: None, deletion: DeletionPolicy::DeleteObjects }
    );
    assert_eq!(plan(&[(DELETION_POLICY, "delete")], &[]), Err(ClassError::DeletionPolicy("delete".into())));
}

#[test]
fn the_region_is_the_mounts_too() {
    assert_eq!(
        plan(&[(REGION, "eu-west-1")], &["region eu-west-1"]).unwrap().region.as_deref(),
        Some("eu-west-1")
    );
    assert_eq!(plan(&[(REGION, "eu-west-1")], &["region=us-east-1"]), Err(ClassError::MountOption(REGION)));
    assert_eq!(plan(&[(REGION, "eu west")], &[]), Err(ClassError::Region("eu west".into())));
}

#[test]
fn volumes_are_mounted_from_the_drivers_endpoint_only() {
    assert!(plan(&[(ENDPOINT, "http://s3.test/")], &[]).is_ok());
    let error = refused(&[(ENDPOINT, "http://other.test")], &[]);
    assert!(error.contains("\"http://other.test\"") && error.contains("`http://s3.test`"), "{error}");
}

#[test]
fn secrets_are_whole_and_have_names() {
    let (name, namespace) = (Field::ProvisionerSecretName.key(), Field::ProvisionerSecretNamespace.key());
    let missing = refused(&[(name, "keys")], &[]);
    assert_eq!(missing, "provisioner secret name provided but namespace is missing");
    let missing = refused(&[(Field::NodePublishSecretNamespace.key(), "ns")], &[]);
    assert_eq!(missing, "node-publish secret namespace provided but name is missing");
    let make = [(name, "${pvc.name}-keys"), (namespace, "${pvc.namespace}")];
    assert_eq!(plan(&make, &[]), Err(ClassError::NoPublishSecret));
    let mount =
        [(Field::NodePublishSecretName.key(), "use"), (Field::NodePublishSecretNamespace.key(), "ns")];
    let secret = plan(&[make, mount].concat(), &[]).unwrap();
    let annotations = BTreeMap::new();
    let mut subject =
        Subject { volume_name: "pvc-1", namespace: "ns", name: "data", annotations: &annotations };
    let secret = secret.provisioner_secret.unwrap();
    let expected = SecretRef { namespace: "ns".into(), name: "data-keys".into() };
    assert_eq!(secret.resolve(&subject), Ok(expected));
    subject.namespace = "a.b";
    assert_eq!(secret.resolve(&subject), Err(ClassError::Name(namespace, "a.b".into(), "namespace")));
    subject.name = "Data";
    assert!(matches!(secret.resolve(&subject), Err(ClassError::Name(_, _, "Secret"))));
}

/// Of external-provisioner's: without effect, the driver's keys would take the place of the Secret.
#[test]
fn the_default_secret_stands_in_for_those_that_are_not_named() {
    let default = [(Field::DefaultSecretName.key(), "all"), (Field::DefaultSecretNamespace.key(), "ns")];
    let own = [(Field::NodePublishSecretName.key(), "use"), (Field::NodePublishSecretNamespace.key(), "ns")];
    let subject =
        Subject { volume_name: "pvc-1", namespace: "ns", name: "data", annotations: &BTreeMap::new() };
    for (parameters, expected) in
        [(default.to_vec(), ["all", "all"]), ([default, own].concat(), ["all", "use"])]
    {
        let class = plan(&parameters, &[]).unwrap();
        let secrets = [class.provisioner_secret, class.node_publish_secret];
        assert_eq!(secrets.map(|secret| secret.unwrap().resolve(&subject).unwrap().name), expected);
    }
    assert_eq!(refused(&default[..1], &[]), "secret name provided but namespace is missing");
    let with = |source| plan(&[&default[..], &[(attribute::AUTHENTICATION_SOURCE, source)]].concat(), &[]);
    assert!(with("secret").unwrap().node_publish_secret.is_some());
    assert!(with("pod").unwrap().node_publish_secret.is_none(), "the workload's identity needs none");
    assert_eq!(with("driver"), Err(ClassError::NoPublishSecret));
}

/// A Secret that creates buckets asks for one that mounts them, unless each workload has its own identity.
#[test]
fn the_source_of_credentials_fits_the_secrets() {
    let source = |value| (attribute::AUTHENTICATION_SOURCE, value);
    let make =
        [(Field::ProvisionerSecretName.key(), "keys"), (Field::ProvisionerSecretNamespace.key(), "ns")];
    let with_maker = |value| plan(&[&[source(value)][..], &make].concat(), &[]).map(drop);
    assert_eq!(with_maker("pod"), Ok(()));
    assert_eq!(with_maker("driver"), Err(ClassError::NoPublishSecret));
    assert_eq!(with_maker("secret"), Err(ClassError::SecretUnnamed));
    assert_eq!(plan(&[source("secret")], &[]), Err(ClassError::SecretUnnamed));
    assert_eq!(plan(&[source(" ")], &[]), Err(ClassError::Empty(attribute::AUTHENTICATION_SOURCE)));
    assert!(refused(&[source("nobody")], &[]).contains("unknown `authenticationSource`: nobody"));
    assert!(refused(&[("stsRegion", "a.evil/#")], &[]).contains("invalid `stsRegion`"));
}

#[test]
fn attributes_are_taken_over_and_checked() {
    let cached = plan(&[("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi")], &[]).unwrap();
    assert_eq!(cached.attributes.len(), 2);
    assert!(refused(&[("cache", "disk")], &[]).contains("invalid `cache` \"disk\""));
}
