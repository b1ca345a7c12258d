//! The CSI controller service, for a csi-provisioner that runs beside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use contract::arguments::Arguments;
use contract::volume::AuthenticationSource;
use kube::{Api, Client};
use service::csi::controller_server::Controller;
use service::csi::controller_service_capability::Rpc;
use service::csi::controller_service_capability::rpc::Type;
use service::csi::validate_volume_capabilities_response::Confirmed;
use service::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use tonic::{Request, Response, Status};

use super::asked_keys::AskedKeys;
use super::memory::{Asked, Memory};
use super::naming::{Deletion, VolumeId};
use super::reclaim::Leftover;
use super::request::{RequestError, check_capabilities, given, mount_flags};
use super::server::Account;
use super::storage_class::{Plan, Target};
use super::tell::{self, Reason, Teller};
use super::volume::{self, Gone, Volumes};
use crate::confirm::read;
use crate::slim::SlimVolume;
use crate::world::World;

/// A bucket has no size; what is not asked for is called this.
const SIZE_UNASKED_BYTES: i64 = 1 << 30;
const CAPABILITIES: [Type; 2] = [Type::CreateDeleteVolume, Type::SingleNodeMultiWriter];

pub struct ControllerService {
    volumes: Arc<Volumes>,
    memory: Memory,
    world: Arc<Mutex<World>>,
    objects: Api<SlimVolume>,
    teller: Teller,
    asked_keys: AskedKeys,
}

impl ControllerService {
    pub fn new(client: &Client, volumes: Arc<Volumes>, world: Arc<Mutex<World>>) -> Self {
        let (objects, teller) = (Api::all(client.clone()), Teller::new(client));
        let asked_keys = AskedKeys::new(client, Arc::clone(&volumes), teller.clone());
        Self { volumes, memory: Memory::default(), world, objects, teller, asked_keys }
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
        let Target::Bucket { name_prefix, .. } = &plan.target else { return Err(RequestError::Prefix) };
        let abroad = plan.region.as_ref().filter(|region| *region != self.volumes.server.endpoint.home());
        if let Some(region) = abroad
            && Arguments::parse(&options).value(volume::REGION) != Some(region)
        {
            return Err(RequestError::Region(region.clone()));
        }
        let id = VolumeId::bucket(&request.name, name_prefix.as_deref());
        // Without keys for making it, only the volume itself will know whether it names a Secret to be mounted with.
        let source = (!request.secrets.is_empty()).then_some(AuthenticationSource::Secret);
        let credentials = match given(request.secrets)? {
            Some(credentials) => credentials,
            None => self.asked_keys.of_claim(&parameters).await?,
        };
        let asked = Asked { required, limit, parameters };
        if self.memory.contradicts(id.bucket_name(), &asked) {
            return Err(RequestError::Other(id.to_string()));
        }
        let account = Account { credentials: &credentials, region: plan.region.as_deref() };
        self.volumes.create(&id, account).await?;
        self.memory.keep(id.bucket_name(), asked);
        tracing::info!(volume_id = %id, name = request.name, "volume created");
        let capacity_bytes = if required == 0 { SIZE_UNASKED_BYTES } else { required };
        let context = volume::context(&id, source, &plan, plan.region.as_deref());
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
        if matches!(id, VolumeId::Prefix { deletion: Deletion::Retain, .. }) {
            tracing::info!(volume_id = %id, "objects are retained");
            return Ok(());
        }
        let volume = self.behind(&request.volume_id).await;
        let leftover = volume.as_ref().and_then(Leftover::of);
        let credentials = match (given(request.secrets)?, &volume) {
            (Some(credentials), _) => credentials,
            (None, None) => self.volumes.drivers_own()?,
            (None, Some(volume)) => match self.asked_keys.of_volume(volume, &id).await? {
                Some(credentials) => credentials,
                None => return Ok(()),
            },
        };
        let deletion = leftover.as_ref().map(|leftover| leftover.deletion).unwrap_or_default();
        let region = leftover.and_then(|leftover| leftover.region);
        let account = Account { credentials: &credentials, region: region.as_deref() };
        let gone = self.volumes.delete(&id, deletion, account).await?;
        self.memory.forget(id.bucket_name());
        match gone {
            Gone::Deleted => tracing::info!(volume_id = %id, "volume deleted"),
            Gone::Kept(why) => {
                tracing::warn!(volume_id = %id, ?why, "bucket is kept");
                self.volumes.kept.count(why.into());
                if let Some(volume) = volume {
                    let address = self.volumes.server.endpoint.address(account.region());
                    let message = tell::kept(id.bucket_name(), &address, why);
                    self.teller.tell(tell::volume(&volume), Reason::BucketKept, message);
                }
            }
            Gone::Retained => {}
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
        let credentials = match given(request.secrets)? {
            Some(credentials) => credentials,
            None => self.volumes.drivers_own()?,
        };
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
