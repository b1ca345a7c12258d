//! Behaviour that needs several nodes: volumes on many of them, workloads that move, nodes that join, fail and return.

mod chaos;
mod join;
mod leader;
mod loss;
mod move_away;
mod network;
mod place;
mod power;
mod share;
