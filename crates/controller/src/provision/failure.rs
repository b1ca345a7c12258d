//! Why a claim or a volume is not done, and what of it is told.

use thiserror::Error;

use super::storage_class::ClassError;
use super::volume::VolumeError;
use super::write::WriteError;
use crate::confirm::ReadError;

#[derive(Debug, Error)]
pub(super) enum ProvisionError {
    #[error("the claim names no StorageClass")]
    NoClass,
    #[error("there is no StorageClass `{0}`: create it, or correct the claim")]
    ClassMissing(String),
    #[error("StorageClass `{0}`: {1}")]
    Class(String, ClassError),
    #[error("there is no Secret {0}/{1}: create it, or correct the class")]
    SecretMissing(String, String),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It would tell the claim's author about a Secret that is perhaps none of their business.
    #[error(transparent)]
    Untold(Box<ProvisionError>),
}

impl ProvisionError {
    /// Nothing is wrong: what we knew was old, and the watch will tell.
    pub(super) fn is_outdated(&self) -> bool {
        matches!(self, Self::Write(WriteError::Outdated { .. }))
    }

    /// To users; the log has it all.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Untold(_) => {
                "what was begun for this claim cannot be undone yet: the controller's log says why".to_owned()
            }
            error => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_be_told_is_only_logged() {
        let missing = || ProvisionError::SecretMissing("theirs".to_owned(), "keys".to_owned());
        assert_eq!(missing().told(), missing().to_string());
        let untold = ProvisionError::Untold(Box::new(missing()));
        assert_eq!(untold.to_string(), missing().to_string());
        assert!(!untold.told().contains("theirs") && !untold.told().contains("keys"), "{}", untold.told());
    }
}
