//! A client of the driver's sockets that acts like the kubelet.

use std::path::Path;

use service::csi::volume_capability::access_mode::Mode;
use service::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use service::csi::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, ProbeRequest,
    ProbeResponse, VolumeCapability,
};
use service::registration::{RegistrationStatus, RegistrationStatusResponse};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

#[derive(Clone)]
pub struct Csi(Channel);

impl Csi {
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        Ok(Self(endpoint.connect().await?))
    }

    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let NodePublishVolumeResponse {} = self.call("/csi.v1.Node/NodePublishVolume", request).await?;
        Ok(())
    }

    pub async fn unpublish(&self, volume_id: &str, target: &Path) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path: target.to_str().unwrap().to_owned(),
        };
        let NodeUnpublishVolumeResponse {} = self.call("/csi.v1.Node/NodeUnpublishVolume", request).await?;
        Ok(())
    }

    pub async fn stats(&self, volume_id: &str, path: &Path) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume_id.to_owned(),
            volume_path: path.to_str().unwrap().to_owned(),
        };
        self.call("/csi.v1.Node/NodeGetVolumeStats", request).await
    }

    /// Whether the driver reports that it is ready.
    pub async fn is_ready(&self) -> bool {
        let answer: ProbeResponse = self.call("/csi.v1.Identity/Probe", ProbeRequest {}).await.unwrap();
        answer.ready.is_some_and(|ready| ready.value)
    }

    /// What the kubelet sends on the registration socket after it has registered the driver.
    pub async fn registered(&self) {
        self.notify(RegistrationStatus { plugin_registered: true, error: String::new() }).await;
    }

    /// What it sends if it could not.
    pub async fn rejected(&self, why: &str) {
        self.notify(RegistrationStatus { plugin_registered: false, error: why.to_owned() }).await;
    }

    async fn notify(&self, status: RegistrationStatus) {
        let method = "/pluginregistration.Registration/NotifyRegistrationStatus";
        let RegistrationStatusResponse {} = self.call(method, status).await.unwrap();
    }

    pub async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = Grpc::new(self.0.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(method);
        let answer = client.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }
}

/// The kubelet's request for a pod that mounts a bucket.
pub fn publish_request(volume_id: &str, bucket: &str, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        target_path: target.to_str().unwrap().to_owned(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: [("bucketName".to_owned(), bucket.to_owned())].into(),
        ..NodePublishVolumeRequest::default()
    }
}
