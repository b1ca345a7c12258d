//! A minimal client that checks whether the API server and the node are ready.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::{Cluster, NODE_ADDRESS, Node};

/// A server that is starting responds at once or not at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn server() -> String {
    format!("https://{NODE_ADDRESS}:6443")
}

pub(crate) struct Api(Agent);

impl Api {
    pub(crate) fn as_admin(cluster: &Cluster) -> Result<Self> {
        let authority = Certificate::from_pem(&fs::read(cluster.authority())?)?;
        let certificate = Certificate::from_pem(&fs::read(cluster.pki("admin.crt"))?)?;
        let key = PrivateKey::from_pem(&fs::read(cluster.pki("admin.key"))?)?;
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&[authority]))
            .client_cert(Some(ClientCert::new_with_certs(&[certificate], key)))
            .build();
        Ok(Self(Agent::config_builder().tls_config(tls).timeout_global(Some(ANSWER_WITHIN)).build().into()))
    }

    pub(crate) fn ready(&self) -> bool {
        self.get("/readyz").is_ok_and(|body| body == "ok")
    }

    /// Whether pods can run: the node is Ready, and the default service account exists. A node that was Ready before `since`
    /// must also have renewed its lease after it.
    pub(crate) fn usable(&self, node: Node, since: Option<Timestamp>) -> bool {
        self.renewed_lease(node, since).unwrap_or(false)
            && self.node_ready(node).unwrap_or(false)
            && self.get("/api/v1/namespaces/default/serviceaccounts/default").is_ok()
    }

    /// Whether the kubelet has renewed the node's Lease since then.
    fn renewed_lease(&self, node: Node, since: Option<Timestamp>) -> Result<bool> {
        let Some(since) = since else { return Ok(true) };
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease: Value = serde_json::from_str(&self.get(&format!("{leases}/{}", node.name()))?)?;
        let renewed = lease["spec"]["renewTime"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        Ok(renewed.is_some_and(|at| at > since))
    }

    fn node_ready(&self, node: Node) -> Result<bool> {
        let node: Value = serde_json::from_str(&self.get(&format!("/api/v1/nodes/{}", node.name()))?)?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
    }

    fn get(&self, path: &str) -> Result<String> {
        Ok(self.0.get(format!("{}{path}", server())).call()?.body_mut().read_to_string()?)
    }
}
