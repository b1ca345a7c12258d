//! What is noted of each attempt at a request to S3, once it has ended.

use std::sync::Arc;

use mountpoint_s3_client::OnTelemetry;
use mountpoint_s3_crt::s3::client::RequestMetrics;

use crate::meter::METER;
use crate::multipart::Unfinished;
use crate::server_timeout::ServerTimeout;

#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) server_timeout: Arc<ServerTimeout>,
    pub(crate) unfinished_uploads: Arc<Unfinished>,
}

impl OnTelemetry for Telemetry {
    fn on_telemetry(&self, attempt: &RequestMetrics) {
        METER.attempted(attempt);
        self.unfinished_uploads.attempted(attempt);
        self.server_timeout.attempted(attempt);
    }
}
