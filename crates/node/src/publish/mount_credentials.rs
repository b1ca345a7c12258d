//! The credentials of a mount: which they are, and the files that the mount process reads them from.

use contract::mountpoint_pod::MountpointPod;
use contract::options::MountOption;
use contract::s3::{self, RegionSources};
use mounter::credentials::Credentials;

use super::error::PublishError;
use crate::comm;
use crate::context::{Context, Installation};
use crate::credentials::{self, Choice, CredentialsError, MountCredentials};
use crate::identity::{self, IdentityError, Workload};
use crate::request::PublishRequest;

/// Writes them on every publish, so that a changed Secret reaches a running mount.
pub(super) fn write_credentials(
    context: &Context,
    request: &PublishRequest,
    pod: &MountpointPod,
) -> Result<MountCredentials, PublishError> {
    if request.arguments.has(MountOption::NoSignRequest) {
        let source = request.volume.authentication;
        return Ok(MountCredentials { credentials: Credentials::None, source });
    }
    let Installation { driver_keys, driver_identity, .. } = &context.installation;
    let driver = (driver_keys, driver_identity.as_ref());
    // A mount that heals or moves does so with a stored request.
    let request = &context.published.with_newest_credentials(request);
    let (requested, recorded) = (request.authentication, pod.authentication);
    let (choice, source) = credentials::choose(requested, recorded, &request.secret_keys, driver)?;
    let comm = comm::open(&context.kubelet, &pod.uid).map_err(CredentialsError::Write)?;
    let token_file = credentials::token_file(&pod.name);
    let with_token = |(token, credentials): (Option<String>, Credentials)| {
        let write = |token: String| credentials::write_token(&comm, &pod.name, &token);
        token.map(write).transpose().map(|written| (written.unwrap_or_default(), credentials))
    };
    let (written, credentials) = match choice {
        Choice::Keys(keys) => {
            let written = credentials::write_static_keys(&comm, &pod.name, &keys)?;
            (written, credentials::static_keys(&pod.name))
        }
        Choice::Workload => {
            let exchange = workload_exchange(context, request, token_file);
            with_token(exchange.map_err(CredentialsError::from)?)?
        }
        Choice::Driver(identity) => {
            let exchange = identity::of_driver(&identity, token_file, &sts_endpoint(context, request));
            with_token(exchange.map_err(CredentialsError::from)?)?
        }
    };
    if written {
        context.metrics.credentials.inc();
        tracing::info!(
            volume_id = request.volume_id,
            mountpoint_pod = pod.name,
            source = source.as_str(),
            trace_id = request.trace_id(),
            "credentials written"
        );
    }
    Ok(MountCredentials { credentials, source })
}

/// What the mount process does with the workload's identity, and the token for it.
fn workload_exchange(
    context: &Context,
    request: &PublishRequest,
    token_file: String,
) -> Result<(Option<String>, Credentials), IdentityError> {
    let PublishRequest { volume_name, volume_id, pod_uid, .. } = request;
    let workload = Workload {
        namespace: &request.pod_namespace,
        service_account: &request.service_account,
        tokens: &request.tokens,
        role_arn: &context.cache.role_arn(volume_name, volume_id, pod_uid),
        sts_endpoint: &sts_endpoint(context, request),
        agent_url: context.installation.pod_identity_agent.as_deref(),
    };
    workload.exchange(token_file)
}

/// The installation's STS, or Amazon's: in the volume's `stsRegion`, else in the bucket's region, else in the driver's.
fn sts_endpoint(context: &Context, request: &PublishRequest) -> String {
    let Installation { region, sts_endpoint_url, .. } = &context.installation;
    let regions = RegionSources {
        volume: request.volume.sts_region.as_deref().or(request.arguments.value(MountOption::Region)),
        driver: Some(region),
        ..RegionSources::default()
    };
    sts_endpoint_url.clone().unwrap_or_else(|| s3::sts_endpoint(regions.effective()))
}
