//! Workloads with equal keys share a Mountpoint Pod. The key's hash names the attachment.

use sha2::{Digest as _, Sha256};

use crate::attachment::AttachmentSpec;
use crate::volume::AuthenticationSource;

/// The longest name the API server takes.
const NAME_LENGTH: usize = 253;
/// Characters of the hash in a name. 80 bits: collisions cannot be found by trying.
const HASH_LENGTH: usize = 20;

/// Everything that must be equal for two workloads to be served by one Mountpoint Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharingKey {
    pub node: String,
    pub volume_name: String,
    pub volume_id: String,
    /// The options of the `PersistentVolume`, joined by commas.
    pub mount_options: String,
    /// Decimal, or nothing.
    pub fs_group: String,
    pub identity: Identity,
}

/// The identity that a mount uses towards S3, as far as it differs between workloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    Driver,
    Secret,
    /// The workload's own: its namespace, its service account, and the role that the account is bound to, if any.
    Pod {
        namespace: String,
        service_account: String,
        role: String,
    },
}

impl Identity {
    pub fn source(&self) -> AuthenticationSource {
        match self {
            Self::Driver => AuthenticationSource::Driver,
            Self::Secret => AuthenticationSource::Secret,
            Self::Pod { .. } => AuthenticationSource::Pod,
        }
    }
}

impl SharingKey {
    /// `s3pa-<node>-<volume>-<hash>`: the front is for people, the hash, over the whole key, makes it unique. A race to
    /// create the attachment of a key ends in a conflict at the API server, never in two attachments.
    pub fn attachment_name(&self) -> String {
        let front: String = format!("s3pa-{}-{}", self.node, self.volume_name)
            .chars()
            // No dots: what is left after cutting would not always be a legal name.
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
            .take(NAME_LENGTH - HASH_LENGTH - 1)
            .collect();
        format!("{front}-{}", &self.hash()[..HASH_LENGTH])
    }

    fn hash(&self) -> String {
        let (namespace, service_account, role) = match &self.identity {
            Identity::Pod { namespace, service_account, role } => {
                (namespace.as_str(), service_account.as_str(), role.as_str())
            }
            Identity::Driver | Identity::Secret => ("", "", ""),
        };
        let fields = [
            &self.node,
            &self.volume_name,
            &self.volume_id,
            &self.mount_options,
            &self.fs_group,
            self.identity.source().as_str(),
            namespace,
            service_account,
            role,
        ];
        let mut hash = Sha256::new();
        for field in fields {
            // With its length, so that no two lists of fields read the same.
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field);
        }
        base16ct::lower::encode_string(&hash.finalize())
    }

    /// The key of an attachment. Older drivers had two sources and did not record which.
    pub fn of(spec: &AttachmentSpec, unrecorded: AuthenticationSource) -> Self {
        let identity = match AuthenticationSource::parse(&spec.authentication_source) {
            _ if spec.authentication_source.is_empty() => match unrecorded {
                AuthenticationSource::Secret => Identity::Secret,
                AuthenticationSource::Driver | AuthenticationSource::Pod => Identity::Driver,
            },
            Some(AuthenticationSource::Secret) => Identity::Secret,
            Some(AuthenticationSource::Pod) => Identity::Pod {
                namespace: spec.workload_namespace.clone(),
                service_account: spec.workload_service_account_name.clone(),
                role: spec.workload_service_account_iam_role_arn.clone(),
            },
            Some(AuthenticationSource::Driver) | None => Identity::Driver,
        };
        Self {
            node: spec.node_name.clone(),
            volume_name: spec.persistent_volume_name.clone(),
            volume_id: spec.volume_id.clone(),
            mount_options: spec.mount_options.clone(),
            fs_group: spec.workload_fs_group.clone(),
            identity,
        }
    }

    /// An attachment of this key without workloads.
    pub fn spec(&self) -> AttachmentSpec {
        let mut spec = AttachmentSpec {
            node_name: self.node.clone(),
            persistent_volume_name: self.volume_name.clone(),
            volume_id: self.volume_id.clone(),
            mount_options: self.mount_options.clone(),
            workload_fs_group: self.fs_group.clone(),
            authentication_source: self.identity.source().as_str().to_owned(),
            ..AttachmentSpec::default()
        };
        if let Identity::Pod { namespace, service_account, role } = &self.identity {
            spec.workload_namespace.clone_from(namespace);
            spec.workload_service_account_name.clone_from(service_account);
            spec.workload_service_account_iam_role_arn.clone_from(role);
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> impl Strategy<Value = Identity> {
        prop_oneof![
            Just(Identity::Driver),
            Just(Identity::Secret),
            ("[ab]{0,2}", "[ab]{0,2}", "[ab]{0,2}").prop_map(|(namespace, service_account, role)| {
                Identity::Pod { namespace, service_account, role }
            }),
        ]
    }

    /// From so few letters that equal fields, and fields that flow into each other, are common.
    fn key() -> impl Strategy<Value = SharingKey> {
        let text = || prop_oneof!["[ab.,-]{0,3}", "[ab.]{240,253}", ".{0,4}"];
        (text(), text(), text(), text(), text(), identity()).prop_map(
            |(node, volume_name, volume_id, mount_options, fs_group, identity)| SharingKey {
                node,
                volume_name,
                volume_id,
                mount_options,
                fs_group,
                identity,
            },
        )
    }

    fn is_legal_name(name: &str) -> bool {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        name.len() <= 253
            && name.starts_with(edge)
            && name.ends_with(edge)
            && name.chars().all(|c| edge(c) || c == '-')
    }

    proptest! {
        #[test]
        fn equal_keys_and_only_they_have_equal_names(one in key(), other in key()) {
            prop_assert_eq!(one == other, one.attachment_name() == other.attachment_name());
        }

        #[test]
        fn every_field_counts(one in key(), other in key()) {
            // Each of the other's fields, alone, put into the one.
            let variants = [
                SharingKey { node: other.node, ..one.clone() },
                SharingKey { volume_name: other.volume_name, ..one.clone() },
                SharingKey { volume_id: other.volume_id, ..one.clone() },
                SharingKey { mount_options: other.mount_options, ..one.clone() },
                SharingKey { fs_group: other.fs_group, ..one.clone() },
                SharingKey { identity: other.identity, ..one.clone() },
            ];
            for variant in variants {
                prop_assert_eq!(variant == one, variant.attachment_name() == one.attachment_name());
            }
        }

        #[test]
        fn names_are_legal(key in key()) {
            prop_assert!(is_legal_name(&key.attachment_name()), "{}", key.attachment_name());
        }

        #[test]
        fn a_key_is_found_again_in_its_attachment(key in key()) {
            prop_assert_eq!(SharingKey::of(&key.spec(), AuthenticationSource::Driver), key);
        }
    }

    #[test]
    fn the_name_shows_node_and_volume() {
        let key = SharingKey {
            node: "worker-1".into(),
            volume_name: "my-s3-pv".into(),
            volume_id: "bucket".into(),
            mount_options: String::new(),
            fs_group: String::new(),
            identity: Identity::Driver,
        };
        assert!(key.attachment_name().starts_with("s3pa-worker-1-my-s3-pv-"), "{}", key.attachment_name());
    }
}
