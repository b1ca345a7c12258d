//! What every long-running program needs: logs, probes, metrics, and the wish to stop.

pub mod logs;
pub mod probes;
pub mod stop;
