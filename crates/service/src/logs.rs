//! Logs as fields, for machines as JSON and for people as text.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    let filter = filter(&flags.log_level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match flags.log_format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}

/// The library takes a word that is not a level, like `verbose`, for the name of a target: everything else would be silent.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let is_whole = |part: &&str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    match text.split(',').find(|part| !is_whole(part)) {
        Some(part) => Err(format!(
            "invalid --log-level \"{text}\": \"{part}\" is neither a level (error, warn, info, debug, trace, off) nor TARGET=LEVEL"
        )),
        None => EnvFilter::try_new(text).map_err(|error| format!("invalid --log-level \"{text}\": {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for valid in ["info", "DEBUG", "off", "info,kube=debug", "info,tower[call{id=1}]=trace"] {
            assert!(filter(valid).is_ok(), "{valid}");
        }
        for wrong in ["verbose", "info,kube", "kube=verbose", "v=5,all"] {
            let said = filter(wrong).unwrap_err();
            assert!(said.contains("--log-level") && said.contains(wrong), "{said}");
        }
    }
}
