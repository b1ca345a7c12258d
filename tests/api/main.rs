//! A real API server with nothing that acts on objects but, where a test wants it, our controller.

mod admission;
mod attach;
mod bounds;
mod chart;
mod crashes;
mod definition;
mod detach;
mod explain;
mod headroom;
mod heal;
mod identity_values;
mod installation;
mod memory;
mod mount_metrics;
mod needed;
mod network_policies;
mod node;
mod node_mounts;
mod node_moves;
mod pages;
mod policies;
mod registration;
mod rights;
mod server;
mod upgrade;
mod warm;
