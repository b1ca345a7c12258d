//! How the S3 client, and requests that it does not make, are configured.

use std::num::NonZeroUsize;
use std::path::Path;

use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::{S3ClientConfig, TlsConfig};
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_fs::memory::PagedPool;

use crate::options::Options;

/// Programs do not expect transient errors of a file system. `AWS_MAX_ATTEMPTS` overrides it.
const ATTEMPTS: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// The S3 client's default. Without a value the client would ask the cloud's metadata service.
const THROUGHPUT_GBPS: u64 = 10;

pub(super) fn client_config(
    options: &Options,
    (read_part, write_part): (usize, usize),
    pool: PagedPool,
    ca_bundle: Option<&Path>,
) -> Result<S3ClientConfig, Refused> {
    let gbps = options.maximum_throughput_gbps.unwrap_or(THROUGHPUT_GBPS);
    let mut config = S3ClientConfig::new()
        .throughput_target_gbps(gbps as f64)
        .read_part_size(read_part)
        .write_part_size(write_part)
        .read_backpressure(true)
        .initial_read_window(read_part)
        .user_agent(user_agent(options))
        .max_attempts(ATTEMPTS)
        .memory_pool(pool);
    if let Some(interfaces) = &options.bind {
        config = config.network_interface_names(interfaces.clone());
    }
    if options.requester_pays {
        config = config.request_payer("requester");
    }
    if let Some(owner) = &options.expected_bucket_owner {
        config = config.bucket_owner(owner);
    }
    if let Some(bundle) = ca_bundle {
        let tls = TlsConfig::new().with_trust_store_path(bundle);
        tls.validate().map_err(|error| Refused::new(Code::BadOption, format!("ca-bundle: {error}")))?;
        config = config.tls_config(tls);
    }
    Ok(config)
}

/// The headers of requests that the S3 client does not make.
pub(super) fn headers(options: &Options) -> Vec<(&'static str, String)> {
    let payer = options.requester_pays.then(|| ("x-amz-request-payer", "requester".to_owned()));
    let owner = options.expected_bucket_owner.clone().map(|owner| ("x-amz-expected-bucket-owner", owner));
    let agent = Some(("User-Agent", user_agent(options).build()));
    [agent, payer, owner].into_iter().flatten().collect()
}

/// For the server's logs: the driver's prefix, then this program.
fn user_agent(options: &Options) -> UserAgent {
    let own = concat!("s3-csi-mountpoint/", env!("CARGO_PKG_VERSION"));
    let prefix = options.user_agent_prefix.iter().map(String::as_str).chain([own]);
    let mut agent = UserAgent::new(Some(prefix.collect::<Vec<_>>().join(" ")));
    if options.read_only {
        agent.value("mp-readonly");
    }
    if options.cache.is_some() {
        agent.key_value("mp-cache", "local");
    }
    agent
}
