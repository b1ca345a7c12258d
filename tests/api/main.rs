//! A real API server with nothing that acts on objects but, where a test wants it, our controller.

mod attach;
mod bounds;
mod chart;
mod crashes;
mod definition;
mod detach;
mod explain;
mod heal;
mod memory;
mod needed;
mod node;
mod node_mounts;
mod policies;
mod rights;
mod server;
