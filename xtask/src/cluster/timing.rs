//! How soon the control plane treats a silent node as lost. A single node keeps the defaults of Kubernetes, because no other node
//! could take over. With several nodes, tests would spend most of their time waiting for the defaults.

use anyhow::Result;

use super::Cluster;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Duration of a node's Lease, which the kubelet renews four times in this time.
    pub(crate) lease_seconds: u32,
    pub(crate) loss: Option<Loss>,
}

/// The longest pause of the kubelet before it starts a container again (default: 300 s), where it can be set.
const RESTART_SECONDS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// A node whose Lease was not renewed for this long is not ready (default: 50). Ten renewals, because a busy machine can
    /// delay some.
    pub(crate) grace_seconds: u32,
    /// Pods without tolerations of their own are evicted this long after that (default: 300).
    pub(crate) toleration_seconds: u32,
}

impl Timing {
    const ALONE: Self = Self { lease_seconds: 40, loss: None };
    const WITH_OTHERS: Self =
        Self { lease_seconds: 8, loss: Some(Loss { grace_seconds: 20, toleration_seconds: 5 }) };
}

impl Cluster {
    /// A part of the kubelet's configuration. Tests that kill the same container many times would wait for its backoff.
    pub(crate) fn restart_backoff(&self) -> Result<String> {
        let plan = self.plan()?;
        let settable = plan.nodes > 1 && plan.kubernetes.limits_restart_backoff();
        let limit = format!("crashLoopBackOff: {{maxContainerRestartPeriod: {RESTART_SECONDS}s}}");
        Ok(if settable { limit } else { String::new() })
    }

    pub(crate) fn timing(&self) -> Result<Timing> {
        Ok(if self.plan()?.nodes == 1 { Timing::ALONE } else { Timing::WITH_OTHERS })
    }
}
