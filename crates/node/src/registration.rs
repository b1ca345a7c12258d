//! The kubelet's plugin registration: the kubelet finds this socket in its plugin registry and asks for the driver's name
//! and endpoint, again after each of its own restarts.

use contract::names::DRIVER;
use service::registration::registration_server::Registration;
use service::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// Version of the CSI interface, not of the driver.
const CSI_VERSION: &str = "1.0.0";

pub struct Registrar {
    /// Path of the CSI socket on the node.
    pub endpoint: String,
    pub registered: watch::Sender<bool>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error, "the kubelet rejected the registration of the driver");
        }
        self.registered.send_replace(plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
