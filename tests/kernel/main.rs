//! Real mounts in a namespace of their own, which takes everything that is left behind with it.

mod credentials;
mod encryption;
mod failures;
mod faults;
mod figures;
mod files;
mod fuse;
mod ground;
mod hand_over;
mod layers;
mod memory;
mod moves;
mod names;
mod network;
mod node;
mod permissions;
mod programs;
mod random;
mod requests;
mod semantics;
mod silence;
mod successors;
mod supervisor;
mod survival;
mod temporary_keys;
mod writers;
