//! Buckets for claims.
//!
//! In reading order: [`storage_class`] says what a class asks for, with [`template`]s; [`naming`] and [`prefix`] what a
//! volume is called; [`credentials`] with whose keys; [`volume`] makes and deletes it through [`server`] in an
//! [`exchange`] with [`signing`], which answers from its [`endpoint`] with a [`listing`], a [`fault`] of some [`kind`] or nothing.
//! [`rpc`] lets a csi-provisioner do that, with a [`memory`].
//!
//! Without one: the [`ledger`] knows the [`claim`]s that wait and the volumes to [`reclaim`]; the [`provisioner`] makes an
//! [`order`] of each, [`write`]s, [`tell`]s of every failure, and has [`patience`].

pub mod claim;
mod connection;
pub mod credentials;
pub mod endpoint;
mod exchange;
mod failure;
pub mod fault;
pub mod kind;
pub mod ledger;
pub mod listing;
pub mod memory;
pub mod naming;
pub mod order;
pub mod patience;
pub mod prefix;
pub mod provisioner;
pub mod reclaim;
pub mod rpc;
pub mod server;
mod signing;
pub mod storage_class;
pub mod tell;
pub mod template;
pub mod volume;
pub mod write;
