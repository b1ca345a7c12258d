//! Whose credentials a volume is mounted with. Credentials of one source never replace missing ones of another: a volume
//! that asks for its own is mounted with those or not at all.

use strum::{EnumString, IntoStaticStr, VariantArray};
use thiserror::Error;

/// Whose credentials a mount uses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum AuthenticationSource {
    /// The installation's.
    #[default]
    Driver,
    /// The keys in the Secret that the volume names.
    Secret,
    /// The workload's own.
    Pod,
}

/// What is known about a volume's `nodePublishSecretRef`. The controller reads the volume. The node does not: the kubelet
/// sends the same for a Secret without data as for no Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretPresence {
    Absent,
    Present,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuthenticationError {
    #[error(
        "unknown `authenticationSource`: {0}, only `driver` (default option if not specified), `secret` and `pod` supported"
    )]
    UnknownSource(String),
    #[error(
        "`authenticationSource: secret` without `nodePublishSecretRef`: name the Secret with the volume's keys there, \
         or use `authenticationSource: driver`; neither can be edited, so create the volume anew"
    )]
    SecretUnnamed,
}

impl AuthenticationSource {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(Self::default()) } else { text.parse().ok() }
    }

    /// What a volume asks for by its attribute `authenticationSource`; one that says nothing there and names a Secret asks
    /// for the keys of that Secret.
    pub fn of_volume(attribute: &str, secret: SecretPresence) -> Result<Self, AuthenticationError> {
        let source =
            Self::parse(attribute).ok_or_else(|| AuthenticationError::UnknownSource(attribute.to_owned()))?;
        match (source, secret) {
            (Self::Secret, SecretPresence::Absent) => Err(AuthenticationError::SecretUnnamed),
            (Self::Driver, SecretPresence::Present) if attribute.is_empty() => Ok(Self::Secret),
            _ => Ok(source),
        }
    }

    /// The same as far as a request shows it: `None` if the volume may name a Secret that is empty.
    pub fn of_request(attribute: &str, secret: SecretPresence) -> Result<Option<Self>, AuthenticationError> {
        let is_shown = !attribute.is_empty() || secret != SecretPresence::Unknown;
        Self::of_volume(attribute, secret).map(|asked| is_shown.then_some(asked))
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_asks_by_its_attribute_or_by_its_secret() {
        use AuthenticationSource::{Driver, Pod, Secret};
        use SecretPresence::{Absent, Present, Unknown};
        let unnamed = Err(AuthenticationError::SecretUnnamed);
        for (attribute, absent, present, unknown) in [
            ("", Ok(Driver), Ok(Secret), Ok(Driver)),
            ("driver", Ok(Driver), Ok(Driver), Ok(Driver)),
            ("secret", unnamed, Ok(Secret), Ok(Secret)),
            ("pod", Ok(Pod), Ok(Pod), Ok(Pod)),
        ] {
            for (secret, expected) in [(Absent, absent), (Present, present), (Unknown, unknown)] {
                assert_eq!(
                    AuthenticationSource::of_volume(attribute, secret),
                    expected,
                    "{attribute:?} {secret:?}"
                );
            }
        }
        assert_eq!(AuthenticationSource::of_request("", Unknown), Ok(None));
        assert_eq!(AuthenticationSource::of_request("", Present), Ok(Some(Secret)));
        assert_eq!(AuthenticationSource::of_request("driver", Unknown), Ok(Some(Driver)));
        let error = AuthenticationSource::of_volume("Secret", Unknown).unwrap_err().to_string();
        assert!(error.contains("unknown `authenticationSource`: Secret, only `driver`"), "{error}");
    }

    #[test]
    fn sources_read_as_they_are_written() {
        for &source in AuthenticationSource::ALL {
            assert_eq!(AuthenticationSource::parse(source.as_str()), Some(source));
        }
    }
}
