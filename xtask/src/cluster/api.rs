//! Just enough of a client to know when the API server and the node are ready.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::{Cluster, NODE_ADDRESS, NODE_NAME};

/// A server that is starting answers at once or not at all.
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

    /// Pods can be created and will run: the node is Ready, and the account that pods get by default exists.
    pub(crate) fn usable(&self) -> bool {
        self.node_ready().unwrap_or(false)
            && self.get("/api/v1/namespaces/default/serviceaccounts/default").is_ok()
    }

    fn node_ready(&self) -> Result<bool> {
        let node: Value = serde_json::from_str(&self.get(&format!("/api/v1/nodes/{NODE_NAME}"))?)?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
    }

    fn get(&self, path: &str) -> Result<String> {
        Ok(self.0.get(format!("{}{path}", server())).call()?.body_mut().read_to_string()?)
    }
}
