//! The CSI controller service, for a csi-provisioner in the same pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::arguments::Arguments;
use contract::options::MountOption;
use contract::volume::{AuthenticationSource, attribute};
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

use super::bucket::DeleteOutcome;
use super::claims::account::BucketAccount;
use super::claims::claim::Unsupported;
use super::class::parameters::{CLAIM_NAME, CLAIM_NAMESPACE, ClassParameters, REGION};
use super::context::Context;
use super::created_volumes::{CreatedVolumes, CreatedWith};
use super::csi_request::{RequestError, check_capabilities, credentials, mount_flags};
use super::error::ProvisionError;
use super::new_volume::NewVolume;
use super::reclaim::delete_contents;
use super::reclaim::volume::Contents;
use super::s3::credentials::{Account, Credentials};
use super::volume_id::VolumeId;
use crate::slim::SlimVolume;

/// A bucket has no size; a volume needs one.
const DEFAULT_CAPACITY_BYTES: i64 = 1 << 30;
const CAPABILITIES: [Type; 2] = [Type::CreateDeleteVolume, Type::SingleNodeMultiWriter];

/// The name of a volume with this handle, as far as the watch has shown it.
pub type VolumeByHandle = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub struct ControllerService {
    context: Arc<Context>,
    created: CreatedVolumes,
    volume_by_handle: VolumeByHandle,
}

impl ControllerService {
    pub fn new(context: Arc<Context>, volume_by_handle: VolumeByHandle) -> Self {
        Self { context, created: CreatedVolumes::default(), volume_by_handle }
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
            return Err(RequestError::Claim(Unsupported::Source));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(RequestError::Claim(Unsupported::AttributesClass));
        }
        let parameters: BTreeMap<String, String> = request.parameters.into_iter().collect();
        let options: Vec<String> =
            request.volume_capabilities.iter().flat_map(mount_flags).cloned().collect();
        let mut new = self.new_volume(&request.name, &parameters, &options)?;
        // Without credentials for creating it, only the volume itself will know whether it names a Secret for mounting.
        let source = (!request.secrets.is_empty()).then_some(AuthenticationSource::Secret);
        let credentials = match credentials(request.secrets)? {
            Some(credentials) => credentials,
            None => self.credentials_of_request(&parameters).await?,
        };
        let parameters = CreatedWith { required, limit, parameters };
        if self.created.differs(new.id.bucket_name(), &parameters) {
            return Err(RequestError::Different(new.id.to_string()));
        }
        let account = Account::new(credentials, new.region.as_deref());
        self.context.buckets.create(&new.id, &account).await.map_err(ProvisionError::from)?;
        self.created.insert(new.id.bucket_name(), parameters);
        tracing::info!(volume_id = %new.id, name = request.name, "volume created");
        new.region = account.region().map(str::to_owned);
        Ok(Volume {
            capacity_bytes: if required == 0 { DEFAULT_CAPACITY_BYTES } else { required },
            volume_id: new.id.to_string(),
            volume_context: new.attributes(source).into_iter().collect(),
        })
    }

    /// A bucket in a region from which csi-provisioner's volume is mounted: it writes the class's mount options only.
    fn new_volume(
        &self,
        name: &str,
        parameters: &BTreeMap<String, String>,
        options: &[String],
    ) -> Result<NewVolume, RequestError> {
        let endpoint = &self.context.buckets.s3.endpoint;
        let class = ClassParameters::of(parameters, options, endpoint)?;
        let new = NewVolume::of_request(name, class).ok_or(RequestError::Prefix)?;
        if let Some(region) = new.region.as_ref().filter(|region| *region != endpoint.default_region())
            && Arguments::parse(options).value(MountOption::Region) != Some(region)
        {
            return Err(RequestError::Region(region.clone()));
        }
        Ok(new)
    }

    /// A request without credentials may be for a class without a Secret, or for a Secret that was emptied or is gone; the
    /// driver's keys are for the first of them only. Only a csi-provisioner with `--extra-create-metadata` names the claim.
    async fn credentials_of_request(
        &self,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Credentials, RequestError> {
        let claim = parameters.get(CLAIM_NAMESPACE).zip(parameters.get(CLAIM_NAME));
        let (namespace, name) = claim.ok_or(RequestError::ClaimUnnamed)?;
        Ok(self.credentials_of_class(namespace, name).await?)
    }

    /// What the class of a claim names.
    async fn credentials_of_class(&self, namespace: &str, name: &str) -> Result<Credentials, ProvisionError> {
        let claim = self.context.kubernetes.claim(namespace, name).await?;
        let claim =
            claim.ok_or_else(|| ProvisionError::ClaimMissing(namespace.to_owned(), name.to_owned()))?;
        let class = self.context.kubernetes.class(&claim.class).await?;
        let class = class.ok_or_else(|| ProvisionError::ClassMissing(claim.class.clone()))?;
        let account = BucketAccount::of_class(&claim, &class, &self.context.buckets.s3.endpoint)
            .map_err(|error| ProvisionError::Class(claim.class.clone(), error))?;
        self.context.credentials(account.secret.as_ref()).await
    }

    async fn delete(&self, request: DeleteVolumeRequest) -> Result<(), RequestError> {
        if request.volume_id.is_empty() {
            return Err(RequestError::Id);
        }
        let id = VolumeId::parse(&request.volume_id);
        let volume = self.volume(&request.volume_id).await?;
        let given = if id.is_some() { credentials(request.secrets)? } else { None };
        match delete_contents(&self.context, id.as_ref(), volume.as_ref(), given).await? {
            DeleteOutcome::Incomplete => return Err(RequestError::Incomplete(request.volume_id)),
            DeleteOutcome::Deleted | DeleteOutcome::Kept(_) | DeleteOutcome::Retained => {}
        }
        if let Some(id) = id {
            self.created.remove(id.bucket_name());
        }
        Ok(())
    }

    /// The object of the volume, which the request does not name: it has the region and the Secret, and gets the Events. Only
    /// the API server knows that there is none: a watch may lag, and the driver's keys would replace those of its Secret.
    async fn volume(&self, volume_id: &str) -> Result<Option<SlimVolume>, ProvisionError> {
        let kubernetes = &self.context.kubernetes;
        if let Some(name) = (self.volume_by_handle)(volume_id) {
            let volume = kubernetes.volume(&name).await?;
            if let Some(volume) = volume.filter(|volume| volume.has_handle(volume_id)) {
                return Ok(Some(volume));
            }
        }
        Ok(kubernetes.volume_with_handle(volume_id).await?)
    }

    /// Of the Secret that the volume names, as for its deletion. The driver's keys are not for volumes that ask for their own.
    async fn credentials_of_volume(
        &self,
        request: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<Credentials, RequestError> {
        let volume = self.volume(&request.volume_id).await?;
        let secret = volume.as_ref().and_then(Contents::of).and_then(|contents| contents.secret);
        let source = request.volume_context.get(attribute::AUTHENTICATION_SOURCE);
        let is_own = source.is_some_and(|source| source == <&str>::from(AuthenticationSource::Secret));
        if secret.is_none() && is_own {
            return Err(RequestError::KeysMissing(request.volume_id.clone()));
        }
        Ok(self.context.credentials(secret.as_ref()).await?)
    }

    async fn validate(
        &self,
        mut request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, RequestError> {
        if request.volume_id.is_empty() {
            return Err(RequestError::Id);
        }
        if request.volume_capabilities.is_empty() {
            return Err(RequestError::Capabilities);
        }
        let volume_id = request.volume_id.clone();
        let missing = || RequestError::Missing(volume_id.clone());
        let id = VolumeId::parse(&request.volume_id).ok_or_else(missing)?;
        let credentials = match credentials(std::mem::take(&mut request.secrets))? {
            Some(credentials) => credentials,
            None => self.credentials_of_volume(&request).await?,
        };
        let account = Account::new(credentials, request.volume_context.get(REGION).map(String::as_str));
        if !self.context.buckets.exists(&id, &account).await.map_err(ProvisionError::from)? {
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
        tracing::warn!(call, code = ?status.code(), error = status.message(), "call failed");
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
