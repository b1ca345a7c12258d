//! The CSI controller service, for a csi-provisioner that runs beside.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use contract::arguments::Arguments;
use kube::{Api, Client};
use service::csi::controller_server::Controller;
use service::csi::controller_service_capability::Rpc;
use service::csi::controller_service_capability::rpc::Type;
use service::csi::validate_volume_capabilities_response::Confirmed;
use service::csi::volume_capability::AccessType;
use service::csi::volume_capability::access_mode::Mode;
use service::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    VolumeCapability,
};
use thiserror::Error;
use tonic::{Code, Request, Response, Status};

use super::credentials::Credentials;
use super::memory::{Asked, Memory};
use super::naming::VolumeId;
use super::reclaim::Leftover;
use super::server::Account;
use super::storage_class::{ClassError, Plan, Target};
use super::tell::{self, Reason, Teller};
use super::volume::{self, Gone, VolumeError, Volumes};
use crate::confirm::read;
use crate::slim::SlimVolume;
use crate::world::World;

/// A bucket has no size; what is not asked for is called this.
const SIZE_UNASKED_BYTES: i64 = 1 << 30;
const CAPABILITIES: [Type; 2] = [Type::CreateDeleteVolume, Type::SingleNodeMultiWriter];

#[derive(Debug, Error)]
enum RequestError {
    #[error("volume name is required")]
    Name,
    #[error("volume ID is required")]
    Id,
    #[error("volume capabilities are required")]
    Capabilities,
    #[error("volume capability access mode is required")]
    AccessMode,
    #[error("{0}")]
    Unsupported(String),
    #[error("capacity: {required} bytes are required, and at most {limit} allowed")]
    Capacity { required: i64, limit: i64 },
    #[error("a bucket cannot be made from a snapshot or a volume: remove the claim's dataSource")]
    Source,
    #[error("volumes cannot be modified: remove the VolumeAttributesClass")]
    Mutable,
    #[error("failed to parse StorageClass parameters: {0}")]
    Class(#[from] ClassError),
    #[error(
        "`bucketName` gives each claim a prefix, which csi-provisioner cannot write into the volume: use the driver's own \
         provisioner (--provisioning=on)"
    )]
    Prefix,
    #[error(
        "volumes are mounted with the driver's region unless told otherwise: add the mount option `region={0}` to the class"
    )]
    Region(String),
    #[error("volume `{0}` exists with other parameters")]
    Other(String),
    #[error("there is no volume `{0}`")]
    Missing(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("deleting objects of `{0}`: there are more")]
    Partly(String),
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::Name
            | RequestError::Id
            | RequestError::Capabilities
            | RequestError::AccessMode
            | RequestError::Unsupported(_)
            | RequestError::Source
            | RequestError::Mutable
            | RequestError::Class(_)
            | RequestError::Prefix
            | RequestError::Region(_) => Code::InvalidArgument,
            RequestError::Capacity { .. } => Code::OutOfRange,
            RequestError::Other(_) => Code::AlreadyExists,
            RequestError::Missing(_) => Code::NotFound,
            RequestError::Volume(error) => error.code(),
            RequestError::Partly(_) => Code::Aborted,
        };
        Self::new(code, error.to_string())
    }
}

pub struct ControllerService {
    volumes: Arc<Volumes>,
    memory: Memory,
    world: Arc<Mutex<World>>,
    objects: Api<SlimVolume>,
    teller: Teller,
}

impl ControllerService {
    pub fn new(client: &Client, volumes: Arc<Volumes>, world: Arc<Mutex<World>>) -> Self {
        let (objects, teller) = (Api::all(client.clone()), Teller::new(client));
        Self { volumes, memory: Memory::default(), world, objects, teller }
    }

    async fn create(&self, request: CreateVolumeRequest) -> Result<Volume, RequestError> {
        if request.name.is_empty() {
            return Err(RequestError::Name);
        }
        check_capabilities(&request.volume_capabilities)?;
        let CapacityRange { required_bytes: required, limit_bytes: limit } =
            request.capacity_range.unwrap_or_default();
        if required < 0 || limit < 0 || (limit != 0 && limit < required) {
            return Err(RequestError::Capacity { required, limit });
        }
        if request.volume_content_source.is_some() {
            return Err(RequestError::Source);
        }
        if !request.mutable_parameters.is_empty() {
            return Err(RequestError::Mutable);
        }
        let parameters: BTreeMap<String, String> = request.parameters.into_iter().collect();
        let options: Vec<String> =
            request.volume_capabilities.iter().flat_map(mount_flags).cloned().collect();
        let region = parameters.get(volume::REGION).map(|region| region.trim());
        let plan = Plan::parse(&parameters, &options, &self.volumes.server.endpoint.address(region))?;
        let Target::Bucket { name_prefix } = &plan.target else { return Err(RequestError::Prefix) };
        let abroad = plan.region.as_ref().filter(|region| *region != self.volumes.server.endpoint.home());
        if let Some(region) = abroad
            && Arguments::parse(&options).value(volume::REGION) != Some(region)
        {
            return Err(RequestError::Region(region.clone()));
        }
        let id = VolumeId::bucket(&request.name, name_prefix.as_deref());
        let asked = Asked { required, limit, parameters };
        if self.memory.contradicts(id.bucket_name(), &asked) {
            return Err(RequestError::Other(id.to_string()));
        }
        // As the reference has it; without a Secret of its own the node falls back to the driver's keys.
        let source = if request.secrets.is_empty() { "driver" } else { "secret" };
        let credentials = self.credentials(request.secrets)?;
        let account = Account { credentials: &credentials, region: plan.region.as_deref() };
        self.volumes.create(&id, account).await?;
        self.memory.keep(id.bucket_name(), asked);
        tracing::info!(volume_id = %id, name = request.name, "volume created");
        let capacity_bytes = if required == 0 { SIZE_UNASKED_BYTES } else { required };
        let context = volume::context(&id, source, plan.region.as_deref(), &plan.attributes);
        Ok(Volume {
            capacity_bytes,
            volume_id: id.to_string(),
            volume_context: context.into_iter().collect(),
        })
    }

    async fn delete(&self, request: DeleteVolumeRequest) -> Result<(), RequestError> {
        if request.volume_id.is_empty() {
            return Err(RequestError::Id);
        }
        let Some(id) = VolumeId::parse(&request.volume_id) else {
            // Somebody's own bucket, behind a volume with `Delete`: there is nothing of ours to delete.
            tracing::warn!(volume_id = request.volume_id, "volume was not made here, left alone");
            return Ok(());
        };
        let credentials = self.credentials(request.secrets)?;
        let volume = self.behind(&request.volume_id).await;
        let region = volume.as_ref().and_then(Leftover::of).and_then(|leftover| leftover.region);
        let account = Account { credentials: &credentials, region: region.as_deref() };
        let gone = self.volumes.delete(&id, account).await?;
        self.memory.forget(id.bucket_name());
        match gone {
            Gone::Deleted => tracing::info!(volume_id = %id, "volume deleted"),
            Gone::NotEmpty => {
                tracing::warn!(volume_id = %id, "bucket is not empty and is kept");
                if let Some(volume) = volume {
                    let address = self.volumes.server.endpoint.address(account.region());
                    let message = tell::kept(id.bucket_name(), &address);
                    self.teller.tell(tell::volume(&volume), Reason::BucketKept, message);
                }
            }
            Gone::Retained => tracing::info!(volume_id = %id, "objects are retained"),
            Gone::Partly => return Err(RequestError::Partly(id.to_string())),
        }
        Ok(())
    }

    /// The object of the volume with this id, which the call itself does not name. It knows the region, and is where people
    /// are told.
    async fn behind(&self, volume_id: &str) -> Option<SlimVolume> {
        let name = {
            let world = self.world.lock().expect("nobody panics while changing the world");
            world.volume_with_handle(volume_id)?.to_owned()
        };
        read("the PersistentVolume", self.objects.get_opt(&name)).await.ok()?
    }

    async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, RequestError> {
        if request.volume_id.is_empty() {
            return Err(RequestError::Id);
        }
        if request.volume_capabilities.is_empty() {
            return Err(RequestError::Capabilities);
        }
        let missing = || RequestError::Missing(request.volume_id.clone());
        let id = VolumeId::parse(&request.volume_id).ok_or_else(missing)?;
        let credentials = self.credentials(request.secrets)?;
        let region = request.volume_context.get(volume::REGION).map(String::as_str);
        if !self.volumes.exists(&id, Account { credentials: &credentials, region }).await? {
            return Err(missing());
        }
        match check_capabilities(&request.volume_capabilities) {
            Ok(()) => Ok(ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                }),
                message: String::new(),
            }),
            // Not an error: the answer is that they are not supported, and why.
            Err(RequestError::Unsupported(message)) => {
                Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message })
            }
            Err(error) => Err(error),
        }
    }

    fn credentials(&self, secrets: HashMap<String, String>) -> Result<Credentials, VolumeError> {
        let secrets: BTreeMap<String, String> = secrets.into_iter().collect();
        if secrets.is_empty() {
            self.volumes.drivers_own()
        } else {
            Ok(Credentials::of_secret(&secrets, "the provisioner secret")?)
        }
    }
}

fn mount_flags(capability: &VolumeCapability) -> &[String] {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => &mount.mount_flags,
        Some(AccessType::Block(_)) | None => &[],
    }
}

/// Those that the node service mounts.
fn check_capabilities(capabilities: &[VolumeCapability]) -> Result<(), RequestError> {
    if capabilities.is_empty() {
        return Err(RequestError::Capabilities);
    }
    for capability in capabilities {
        match &capability.access_type {
            Some(AccessType::Block(_)) => {
                let message =
                    "block volumes are not supported: a bucket is a file system; use volumeMode: Filesystem";
                return Err(RequestError::Unsupported(message.to_owned()));
            }
            Some(AccessType::Mount(_)) => {}
            None => return Err(RequestError::Capabilities),
        }
        let mode = capability.access_mode.as_ref().ok_or(RequestError::AccessMode)?.mode();
        if matches!(mode, Mode::Unknown | Mode::MultiNodeSingleWriter) {
            let message = format!("access mode {} is not supported: use ReadWriteMany", mode.as_str_name());
            return Err(RequestError::Unsupported(message));
        }
    }
    Ok(())
}

fn answer<T>(call: &'static str, outcome: Result<T, RequestError>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(|error| {
        let status = Status::from(error);
        tracing::warn!(call, code = ?status.code(), error = status.message(), "not done");
        status
    })
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let volume = self.create(request.into_inner()).await;
        answer("CreateVolume", volume.map(|volume| CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        answer("DeleteVolume", self.delete(request.into_inner()).await.map(|()| DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        answer("ValidateVolumeCapabilities", self.validate(request.into_inner()).await)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |one: Type| ControllerServiceCapability { rpc: Some(Rpc { r#type: one.into() }) };
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: CAPABILITIES.map(capability).to_vec(),
        }))
    }
}
