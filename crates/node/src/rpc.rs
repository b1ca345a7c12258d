//! The CSI node service: parses calls, hands them to their operation, and logs failures.

use std::sync::Arc;
use std::time::Instant;

use contract::trace;
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

use crate::context::Context;
use crate::publish::publish;
use crate::request::PublishRequest;
use crate::stats::stats;
use crate::target::Target;
use crate::unpublish::unpublish;

pub struct NodeService {
    pub context: Arc<Context>,
    /// 0 means no limit.
    pub max_volumes: i64,
}

impl NodeService {
    /// Of the workload that the target belongs to, if it is one.
    fn trace_id(&self, target: &str) -> Option<String> {
        let target = Target::parse(target, self.context.kubelet.path()).ok()?;
        Some(trace::id(&target.pod_uid))
    }
}

const CAPABILITIES: &[Type] =
    &[Type::GetVolumeStats, Type::VolumeCondition, Type::SingleNodeMultiWriter, Type::VolumeMountGroup];

/// A panic would have ended the process: only a runtime that shuts down ends a task.
fn stopping() -> Status {
    Status::unavailable("the node service is stopping; the kubelet will retry")
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (volume_id, target) = (request.volume_id.clone(), request.target_path.clone());
        let started = Instant::now();
        // In a task of its own, so that a half-done mount is finished even if the kubelet hangs up.
        let context = Arc::clone(&self.context);
        let task = tokio::spawn(async move {
            let request = PublishRequest::parse(request, context.kubelet.path())?;
            publish(&context, request).await
        });
        let outcome = match task.await {
            Ok(outcome) => outcome.map_err(Status::from),
            Err(_) => Err(stopping()),
        };
        let code = outcome.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        self.context.metrics.published(code, started.elapsed());
        if let Err(status) = &outcome {
            let trace_id = self.trace_id(&target);
            tracing::warn!(volume_id, target, ?code, error = status.message(), trace_id, "publish failed");
        }
        outcome.map(|()| Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let (context, target) = (Arc::clone(&self.context), target_path.clone());
        let task = tokio::task::spawn_blocking(move || unpublish(&context, &volume_id, &target_path));
        let outcome = match task.await {
            Ok(outcome) => outcome.map_err(Status::from),
            Err(_) => Err(stopping()),
        };
        if let Err(status) = &outcome {
            let (trace_id, code) = (self.trace_id(&target), status.code());
            tracing::warn!(target, ?code, error = status.message(), trace_id, "unpublish failed");
        }
        outcome.map(|()| Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path } = request.into_inner();
        Ok(Response::new(stats(&self.context, &volume_id, &volume_path).await?))
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
        let node_id = self.context.cache.node().to_owned();
        Ok(Response::new(NodeGetInfoResponse { node_id, max_volumes_per_node: self.max_volumes }))
    }
}
