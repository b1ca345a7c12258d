//! How long this controller is the leader, according to the Lease itself. The lease manager reports when another controller
//! holds the Lease, but not while the API server does not respond. A successor takes over as soon as the Lease has expired, so
//! this controller must step down at that moment, or both would write.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Several reads between two renewals.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Tenure {
    pub(crate) leases: Api<Lease>,
    pub(crate) lease: &'static str,
    pub(crate) identity: String,
    pub(crate) duration: Duration,
}

impl Tenure {
    /// Waits until `leads` is true and the Lease confirms it. Returns the time at which the Lease expires.
    pub(crate) async fn begin(&self, leads: &mut watch::Receiver<bool>) -> Option<Instant> {
        loop {
            leads.wait_for(|leads| *leads).await.ok()?;
            match timeout(self.duration, self.held_until()).await {
                Ok(Some(until)) if until > Instant::now() => return Some(until),
                _ => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Cancelled with `stop`, when `leads` becomes false, or when the Lease has expired.
    pub(crate) fn over(
        self: &std::sync::Arc<Self>,
        mut leads: watch::Receiver<bool>,
        until: Instant,
        stop: &CancellationToken,
    ) -> CancellationToken {
        let over = stop.child_token();
        let (cancel, tenure) = (over.clone(), std::sync::Arc::clone(self));
        tokio::spawn(async move {
            tokio::select! {
                _ = leads.wait_for(|leads| !leads) => cancel.cancel(),
                () = tenure.expired(until) => {
                    tracing::warn!("lease expired before it could be renewed");
                    cancel.cancel();
                }
                () = cancel.cancelled() => {}
            }
        });
        over
    }

    /// Returns when the Lease has expired. A failed read does not extend it.
    async fn expired(&self, mut until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let look = async {
                sleep(LOOK_EVERY).await;
                self.held_until().await
            };
            match timeout(left, look).await {
                Ok(held) => until = held.unwrap_or(until),
                Err(_) => return,
            }
        }
    }

    /// `None` if the Lease cannot be read.
    async fn held_until(&self) -> Option<Instant> {
        let asked = Instant::now();
        let lease = self.leases.get(self.lease).await.ok()?;
        let age = self.age(&lease.spec?, Timestamp::now())?;
        Some(asked + self.duration.saturating_sub(age))
    }

    /// The time since the last renewal, by the clock of this node, which also wrote the renewal. The full duration, that is
    /// expired, if another controller holds the Lease.
    fn age(&self, spec: &LeaseSpec, now: Timestamp) -> Option<Duration> {
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Some(self.duration);
        }
        let renewed = spec.renew_time.as_ref()?.0;
        Some(Duration::try_from(now.duration_since(renewed)).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    #[tokio::test]
    async fn a_lease_counts_only_for_its_holder_and_from_its_renewal() {
        let client =
            kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let tenure = Tenure {
            leases: Api::namespaced(client, "none"),
            lease: "lease",
            identity: "this".into(),
            duration: Duration::from_secs(8),
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let spec = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(MicroTime(at(1000))),
            ..LeaseSpec::default()
        };
        assert_eq!(tenure.age(&spec("this"), at(1003)), Some(Duration::from_secs(3)));
        assert_eq!(tenure.age(&spec("other"), at(1003)), Some(tenure.duration));
        assert_eq!(tenure.held_until().await, None, "no API server responds");
        let began = Instant::now();
        tenure.expired(began + Duration::from_millis(50)).await;
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
}
