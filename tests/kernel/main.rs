//! Real mounts in a namespace of our own, where nothing we leave behind can hurt.

mod credentials;
mod encryption;
mod failures;
mod files;
mod fuse;
mod ground;
mod hand_over;
mod layers;
mod memory;
mod network;
mod node;
mod semantics;
mod silence;
