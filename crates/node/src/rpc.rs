//! The CSI node service: each call is one line, and what it does is elsewhere.

use std::sync::Arc;
use std::time::Instant;

use service::csi::node_server::Node;
use service::csi::node_service_capability::Rpc;
use service::csi::node_service_capability::rpc::Type;
use service::csi::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};
use tonic::{Request, Response, Status};

use crate::publish::Publisher;

pub struct NodeService {
    pub publisher: Arc<Publisher>,
    /// 0: as many as kubelet likes.
    pub max_volumes: i64,
}

const CAPABILITIES: &[Type] =
    &[Type::GetVolumeStats, Type::VolumeCondition, Type::SingleNodeMultiWriter, Type::VolumeMountGroup];

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (volume_id, target) = (request.volume_id.clone(), request.target_path.clone());
        let began = Instant::now();
        // On a task of its own: kubelet may hang up, and a mount that is half-way is better finished.
        let publisher = Arc::clone(&self.publisher);
        let outcome = tokio::spawn(async move { publisher.publish(request).await }).await;
        let outcome = match outcome {
            Ok(outcome) => outcome.map_err(Status::from),
            Err(panic) => Err(Status::internal(format!("publishing panicked: {panic}"))),
        };
        let code = outcome.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        self.publisher.metrics.published(code, began.elapsed());
        if let Err(status) = &outcome {
            tracing::warn!(volume_id, target, code = ?status.code(), error = status.message(), "not published");
        }
        outcome.map(|()| Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let publisher = Arc::clone(&self.publisher);
        let outcome =
            tokio::task::spawn_blocking(move || publisher.unpublish(&volume_id, &target_path)).await;
        let outcome = outcome.unwrap_or_else(|panic| Err(Status::internal(panic.to_string())));
        if let Err(status) = &outcome {
            tracing::warn!(code = ?status.code(), error = status.message(), "not unpublished");
        }
        outcome.map(|()| Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path } = request.into_inner();
        self.publisher.stats(&volume_id, &volume_path).await.map(Response::new)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |one: &Type| NodeServiceCapability { rpc: Some(Rpc { r#type: (*one).into() }) };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: CAPABILITIES.iter().map(capability).collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.publisher.known.node().to_owned();
        Ok(Response::new(NodeGetInfoResponse { node_id, max_volumes_per_node: self.max_volumes }))
    }
}
