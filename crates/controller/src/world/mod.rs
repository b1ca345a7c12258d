//! The objects that the watches have shown so far, with the indexes that decisions are gathered by. Every change returns
//! the keys that it may concern.

mod attachments;
mod demand;
mod detached;
mod headroom;
mod headroom_index;
mod nodes_and_pods;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod warm;
mod warm_pods;
mod workloads;

pub use detached::Detached;
#[cfg(test)]
pub(crate) use detached::served_by;
pub use headroom_index::HeadroomIndex;
pub use state::World;
pub use view::View;
pub use warm_pods::WarmPods;
