//! The CSI node service: mounts buckets for the workloads of one node, remounts what died, and unmounts what is unused.
//!
//! A module imports from its own group and the groups above it, and no two import each other.

// What the host offers: mounts, safe paths, the folder shared with a Mountpoint Pod.
pub mod comm;
pub mod descriptors;
pub mod kernel;
pub mod liveness;
pub mod mount_table;
pub mod mounter_client;
pub mod mounts;
pub mod safe_path;

// What the kubelet asks for, and what the cluster says.
pub mod credentials;
pub mod flags;
pub mod identity;
pub mod node_cache;
pub mod request;
pub mod target;

// What operations share.
pub mod context;
pub mod events;
pub mod locks;
pub mod metrics;
pub mod published;

// Operations.
pub mod drain;
pub mod heal;
pub mod publish;
pub mod stats;
pub mod succession;
pub mod sweep;
pub mod unpublish;

// The program.
pub mod registration;
pub mod rpc;
pub mod run;
pub mod taint;
