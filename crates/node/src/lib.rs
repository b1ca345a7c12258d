//! The program on every node: mounts buckets for workloads and takes the mounts away again.

mod assignment;
pub mod comm;
pub mod credentials;
pub mod drain;
pub mod failure;
pub mod flags;
pub mod heal;
pub mod kernel;
pub mod known;
pub mod metrics;
pub mod mount_table;
pub mod mounts;
pub mod place;
pub mod plan;
pub mod publish;
pub mod registration;
pub mod release;
pub mod request;
pub mod rpc;
pub mod run;
mod serve;
pub mod silence;
pub mod sweep;
pub mod taint;
pub mod target;
pub mod tell;
pub mod turn;
