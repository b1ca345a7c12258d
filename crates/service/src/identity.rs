//! The CSI identity service: who this is, and whether it can work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::names::DRIVER;
use tonic::{Request, Response, Status};

use crate::csi::plugin_capability::Service;
use crate::csi::plugin_capability::service::Type;
use crate::csi::probe_response::Ready;
use crate::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, identity_server,
};

pub struct Identity {
    pub ready: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name: DRIVER.to_owned(), vendor_version }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        // Of the whole driver, the same in both programs.
        let service = Service { r#type: Type::ControllerService.into() };
        let capabilities = vec![PluginCapability { service: Some(service) }];
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let value = self.ready.load(Ordering::Relaxed);
        Ok(Response::new(ProbeResponse { ready: Some(Ready { value }) }))
    }
}
