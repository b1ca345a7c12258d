//! Buckets for claims: a real API server and binder, a real S3 server, and our controller between them.

mod annotations;
mod crashes;
mod credentials;
mod examples;
mod faults;
mod hostile;
mod leftovers;
mod modes;
mod objects;
mod prefixes;
mod sanity;
mod socket;
mod transport;
