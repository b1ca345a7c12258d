//! What provisioning counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Default)]
pub struct ProvisioningMetrics {
    pub s3_calls: S3Calls,
    pub buckets_kept: BucketsKept,
    pub certificate_expiry: CertificateExpiry,
}

impl ProvisioningMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let (calls, kept) = (metrics.s3_calls.0.clone(), metrics.buckets_kept.0.clone());
        registry.register("s3_calls", "Requests to the S3 server, by kind and result", calls);
        let help = "Buckets that outlived their volume although its policy is Delete, by reason";
        registry.register("buckets_kept", help, kept);
        let help = "When the certificate of the S3 server expires, in seconds since 1970, as seen by the last TLS connection";
        let expiry = metrics.certificate_expiry.0.clone();
        registry.register("s3_certificate_expires_timestamp_seconds", help, expiry);
        metrics
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    result: &'static str,
}

/// Requests to the S3 server.
#[derive(Clone, Debug, Default)]
pub struct S3Calls(Family<CallLabels, Counter>);

impl S3Calls {
    pub fn count(&self, operation: &'static str, is_ok: bool) {
        let result = if is_ok { "done" } else { "failed" };
        self.0.get_or_create(&CallLabels { operation, result }).inc();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Buckets that outlived their volume although its reclaim policy is Delete.
#[derive(Clone, Debug, Default)]
pub struct BucketsKept(Family<ReasonLabel, Counter>);

impl BucketsKept {
    pub fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabel { reason }).inc();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoLabels {}

/// A family, because there is no value before the first TLS connection.
#[derive(Clone, Debug, Default)]
pub struct CertificateExpiry(Family<NoLabels, Gauge>);

impl CertificateExpiry {
    pub fn set(&self, seconds_since_1970: i64) {
        self.0.get_or_create(&NoLabels {}).set(seconds_since_1970);
    }
}
