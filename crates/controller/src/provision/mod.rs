//! Buckets for claims.
//!
//! In reading order: [`storage_class`] says what a class asks for, with [`template`]s; [`naming`] and [`prefix`] what a
//! volume is called; [`credentials`] with whose keys; [`volume`] makes and deletes it through [`server`] in an
//! [`exchange`] with [`signing`], which answers from its [`endpoint`] with a [`listing`], a [`fault`] of some [`kind`] or nothing. [`rpc`] lets a
//! csi-provisioner do that by [`request`]s, with the [`asked_keys`] and a [`memory`].
//!
//! Without one: the [`ledger`] knows the [`claim`]s that wait and the volumes to [`reclaim`]; the [`provisioner`] makes an
//! [`order`] of each claim with the keys of its [`keyring`], remembers their [`origin`], and [`delete`]s volumes, or
//! [`abandon`]s them; it [`write`]s, [`tell`]s of every failure, and has [`patience`].

mod abandon;
mod asked_keys;
pub mod claim;
mod connection;
pub mod credentials;
mod delete;
pub mod endpoint;
mod exchange;
mod failure;
pub mod fault;
mod keyring;
pub mod kind;
pub mod ledger;
pub mod listing;
pub mod memory;
pub mod naming;
pub mod order;
mod origin;
pub mod patience;
pub mod prefix;
pub mod provisioner;
pub mod reclaim;
mod request;
pub mod rpc;
pub mod server;
mod signing;
pub mod storage_class;
pub mod tell;
pub mod template;
pub mod volume;
pub mod write;
