//! Logs as fields, for machines as JSON and for people as text.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

#[derive(Args, Clone, Debug)]
pub struct LogFlags {
    /// What to log: a level, or targets with levels (`info,kube=debug`).
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// How to log.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormat {
    #[default]
    Json,
    Text,
}

/// Starts logging to standard error. An invalid level is an error, not a silent default.
pub fn start(flags: &LogFlags) -> Result<(), String> {
    let filter = EnvFilter::try_new(&flags.log_level)
        .map_err(|error| format!("invalid --log-level \"{}\": {error}", flags.log_level))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match flags.log_format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}
