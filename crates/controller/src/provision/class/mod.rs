//! What a `StorageClass` asks for: its [`parameters`], with a [`template`] for names that depend on the claim and the
//! [`prefix`] that a claim gets in a shared bucket.

pub mod parameters;
pub mod prefix;
pub mod template;
