//! Real mounts in a namespace of our own, where nothing we leave behind can hurt.

mod fuse;
