//! The log and the metrics of the process.

use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::AWSCRT_LOG_TARGET;
use mountpoint_s3_fs::logging::{LoggingConfig, LoggingHandle, init_logging, prepare_log_file_name};
use mountpoint_s3_fs::metrics::{self, MetricsConfig, MetricsSinkHandle};
use mountpoint_s3_fs::metrics_otel::OtlpConfig;

use crate::options::Options;

/// Both work as long as the handles live.
pub(crate) fn install(options: &Options) -> Result<(LoggingHandle, MetricsSinkHandle), Refused> {
    let bad_option = |error: anyhow::Error| Refused::new(Code::BadOption, format!("{error:#}"));
    let logging = init_logging(config(options)).map_err(|error| bad_option(error.context("logging")))?;
    let metrics = metrics::install(metrics_config(options)).map_err(bad_option)?;
    Ok((logging, metrics))
}

fn config(options: &Options) -> LoggingConfig {
    let metrics = if options.log_metrics || options.debug { "" } else { ",mountpoint_s3_fs::metrics=off" };
    let own = if options.debug { "debug" } else { "warn,mountpoint_s3=info,s3_csi_mountpoint=info" };
    let crt = if options.debug_crt { "debug" } else { "off" };
    // The log of signing contains session tokens.
    let crt = format!("{AWSCRT_LOG_TARGET}={crt},{AWSCRT_LOG_TARGET}::AuthSigning=off");
    let default_filter = if options.no_log { "off".to_owned() } else { format!("{own},{crt}{metrics}") };
    LoggingConfig {
        log_file: options.log_directory.as_deref().map(prepare_log_file_name),
        log_to_stdout: true,
        default_filter,
    }
}

fn metrics_config(options: &Options) -> Option<MetricsConfig> {
    let mut config = OtlpConfig::new(options.otlp_endpoint.as_ref()?);
    if let Some(seconds) = options.otlp_export_interval {
        config.interval_secs = seconds;
    }
    Some(MetricsConfig::Otlp(config))
}
