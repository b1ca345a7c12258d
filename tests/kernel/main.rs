//! Real mounts in a namespace of their own, which takes everything that is left behind with it.

mod credentials;
mod encryption;
mod failures;
mod files;
mod fuse;
mod ground;
mod hand_over;
mod layers;
mod memory;
mod names;
mod network;
mod node;
mod permissions;
mod programs;
mod random;
mod semantics;
mod silence;
mod supervisor;
mod temporary_keys;
mod writers;
