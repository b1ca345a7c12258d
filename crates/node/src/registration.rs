//! How kubelet learns of this driver: it finds a socket in its registry and asks who is there. It does so again after
//! its own restart, as the socket is still there.

use contract::names::DRIVER;
use service::registration::registration_server::Registration;
use service::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// Of the interface, not of the driver.
const CSI_VERSION: &str = "1.0.0";

pub struct Registrar {
    /// The driver's socket as kubelet sees it.
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
            tracing::info!("registered with kubelet");
        } else {
            tracing::error!(error, "kubelet refuses to register the driver");
        }
        self.registered.send_replace(plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
