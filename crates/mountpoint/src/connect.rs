//! From options to a client that is known to work: keys, region and bucket are tried before anything is served, and what
//! is wrong with them is said in words.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mounter::reply::{Code, Refused};
use mountpoint_s3_client::config::{
    AddressingStyle, Allocator, EndpointConfig, S3ClientConfig, TlsConfig, Uri,
};
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_client::{ObjectClient as _, S3CrtClient, S3RequestError};
use mountpoint_s3_fs::memory::PagedPool;
use mountpoint_s3_fs::s3::{S3Path, S3Personality};

use crate::client::{Client, Recipe};
use crate::credentials::Source;
use crate::diagnose::Way;
use crate::explain::{self, Target};
use crate::options::Options;

/// The longest that one who mounts waits for a server that does not answer; kubelet tries again by itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// A server that is there answers sooner; for one that does not, it is worth finding out why.
const DIAGNOSE_AFTER: Duration = Duration::from_secs(1);
/// A file system must be stubborn, as programs do not expect transient errors. `AWS_MAX_ATTEMPTS` overrides it.
const ATTEMPTS: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// What the S3 client aims at unless told otherwise. Never asked from the cloud's metadata service.
const THROUGHPUT_GBPS: u64 = 10;
const REGION: &str = "us-east-1";

/// The parts that the client's options decide.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) first: S3CrtClient,
    pub(crate) personality: S3Personality,
}

/// What the surroundings say about a variable.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(crate) fn connect(
    options: &Options,
    path: &S3Path,
    part_sizes: (usize, usize),
    pool: PagedPool,
    variable: Variable<'_>,
) -> Result<Connected, Refused> {
    let chosen =
        options.region.clone().or_else(|| variable("AWS_REGION")).filter(|region| !region.is_empty());
    let mut region = chosen.clone().unwrap_or_else(|| REGION.to_owned());
    let endpoint_url = options.endpoint_url.clone().or_else(|| variable("AWS_ENDPOINT_URL"));
    let endpoint_url = endpoint_url.filter(|url| !url.is_empty());
    let ca_bundle = options.ca_bundle.clone().or_else(|| variable("AWS_CA_BUNDLE").map(PathBuf::from));
    let ca_bundle = ca_bundle.filter(|bundle| !bundle.as_os_str().is_empty());
    let config = client_config(options, part_sizes, pool, ca_bundle.as_deref())?;
    let source = Source::find(options.no_sign_request, options.profile.as_deref(), variable);
    loop {
        let endpoint = endpoint_config(options, &region, endpoint_url.as_deref())?;
        let target = Target {
            bucket: path.bucket.to_string(),
            endpoint: endpoint_url.clone().unwrap_or_else(|| format!("Amazon S3 in {region}")),
            region: region.clone(),
        };
        let recipe =
            Recipe { config: config.clone().endpoint_config(endpoint.clone()), source: source.clone() };
        // Before the keys are read: if they change in between, the first request sees it.
        let stamp = Client::stamp(&recipe);
        let first = recipe.make().map_err(|error| explain::client(&error, &target))?;
        let way = Way::to(&path.bucket, &endpoint, ca_bundle.as_deref(), variable);
        match attempt(&first, path, way, &target) {
            Ok(()) => {
                let inferred = || S3Personality::infer_from_bucket(&path.bucket, &endpoint);
                let personality = options.personality().unwrap_or_else(inferred);
                let client = Client::new(recipe, first.clone(), stamp, personality.supports_rename_object());
                return Ok(Connected { client, first, personality });
            }
            Err(Attempt::Elsewhere(right)) if chosen.is_none() && region != right => region = right,
            Err(Attempt::Elsewhere(right)) => {
                let message = format!(
                    "bucket `{}` is in region `{right}`, not `{region}`: correct the region",
                    path.bucket
                );
                return Err(Refused::new(Code::WrongRegion, message));
            }
            Err(Attempt::Refused(refused)) => return Err(refused),
        }
    }
}

fn client_config(
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

/// Who asks, for the server's logs: the driver's words first, then this program.
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

fn endpoint_config(options: &Options, region: &str, url: Option<&str>) -> Result<EndpointConfig, Refused> {
    let style = if options.force_path_style { AddressingStyle::Path } else { AddressingStyle::Automatic };
    let config = EndpointConfig::new(region)
        .addressing_style(style)
        .use_accelerate(options.transfer_acceleration)
        .use_dual_stack(options.dual_stack);
    let Some(url) = url else { return Ok(config) };
    let bad = |reason: &str| {
        Refused::new(
            Code::BadOption,
            format!("the endpoint is `{url}`: {reason}, such as https://s3.example.com"),
        )
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(bad("it must be a URL that begins with http:// or https://"));
    }
    let uri = Uri::new_from_str(&Allocator::default(), url).map_err(|_| bad("it must be a URL"))?;
    Ok(config.endpoint(uri))
}

enum Attempt {
    /// The bucket is in this region.
    Elsewhere(String),
    Refused(Refused),
}

enum Heard {
    Answer(Result<(), ObjectClientError<ListObjectsError, S3RequestError>>),
    /// Why there is no answer.
    Diagnosis(Refused),
}

/// One small listing.
fn attempt(client: &S3CrtClient, path: &S3Path, way: Option<Way>, target: &Target) -> Result<(), Attempt> {
    let (sender, heard) = mpsc::channel();
    let (client, path, listed) = (client.clone(), path.clone(), sender.clone());
    // Nobody listens to either of the threads any more once one of them has been heard.
    thread::spawn(move || {
        let listing = client.list_objects(&path.bucket, None, "", 0, path.prefix.as_str());
        let answer = futures::executor::block_on(listing);
        let _ = listed.send(Heard::Answer(answer.map(drop)));
    });
    let began = Instant::now();
    let first = heard.recv_timeout(DIAGNOSE_AFTER).or_else(|_| {
        if let Some(way) = way {
            thread::spawn(move || way.walk().map(|refused| sender.send(Heard::Diagnosis(refused))));
        }
        heard.recv_timeout(ANSWER_WITHIN.saturating_sub(began.elapsed()))
    });
    match first {
        Ok(Heard::Answer(Ok(()))) => Ok(()),
        Ok(Heard::Answer(Err(ObjectClientError::ClientError(S3RequestError::IncorrectRegion(right, _))))) => {
            Err(Attempt::Elsewhere(right))
        }
        Ok(Heard::Answer(Err(error))) => Err(Attempt::Refused(explain::listing(&error, target))),
        Ok(Heard::Diagnosis(refused)) => Err(Attempt::Refused(refused)),
        Err(_) => {
            let (endpoint, limit) = (&target.endpoint, ANSWER_WITHIN.as_secs());
            let message = format!("{endpoint} did not answer within {limit} s: is it overloaded?");
            Err(Attempt::Refused(Refused::new(Code::TimedOut, message)))
        }
    }
}
