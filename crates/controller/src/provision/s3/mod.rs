//! The S3 server: [`client`] has one function per operation, [`transport`] sends one signed request over a pooled
//! [`connection`], if need be through a [`proxy`], [`certificate`] notes when the server's certificate expires, [`response`]
//! reads XML, and [`error`] says what failed and what to do about it.

mod certificate;
pub mod client;
mod connection;
pub mod credentials;
pub mod endpoint;
pub mod error;
pub mod proxy;
pub mod response;
mod signing;
mod transport;
