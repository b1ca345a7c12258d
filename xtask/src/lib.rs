//! The test environment: a real Kubernetes node, a real S3 server and images, built from package registries only.
//! `main.rs` turns these modules into commands; the suites in `tests/` use them directly.

pub mod architecture;
pub mod bench;
pub mod cache;
pub mod cargo;
pub mod cluster;
pub mod command;
pub mod conformance;
pub mod copy;
pub mod cross;
pub mod debian;
pub mod definitions;
pub mod demo;
pub mod driver;
pub mod ground;
pub mod image;
pub mod krew;
mod kubernetes;
pub mod process;
pub mod programs;
pub mod progress;
pub mod s3;
pub mod sbom;
pub mod sources;
pub mod test;
pub mod testpod;
pub mod witness;
