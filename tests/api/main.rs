//! A real API server with nothing that acts on objects.

mod server;
