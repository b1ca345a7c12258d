//! From options to an S3 client that is known to work: credentials, region and bucket are tried before anything is served, so
//! that a mistake becomes an error of the mount.

mod endpoint;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use contract::s3::{RegionSources, is_amazon};
use mounter::deadlines::{DIAGNOSE_AFTER, DIAGNOSE_GRACE, S3_ANSWER};
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::{EndpointConfig, S3ClientConfig, TlsConfig};
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_client::{ObjectClient as _, S3CrtClient, S3RequestError};
use mountpoint_s3_fs::memory::PagedPool;
use mountpoint_s3_fs::s3::{S3Path, S3Personality};

use crate::abort::Aborting;
use crate::client::{Client, ClientError, Recipe, Rights, Savings, Seen};
use crate::credentials::{Source, stamp};
use crate::diagnose::Route;
use crate::memory;
use crate::options::Options;
use crate::refusal::{self, RequestedBucket};
use crate::telemetry::Telemetry;

use endpoint::endpoint_config;

/// How often the answer and the diagnosis are checked while both are awaited.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Programs do not expect transient errors of a file system. `AWS_MAX_ATTEMPTS` overrides it.
const ATTEMPTS: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// The S3 client's default. Without a value the client would ask the cloud's metadata service.
const THROUGHPUT_GBPS: u64 = 10;

pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) first: S3CrtClient,
    pub(crate) personality: S3Personality,
    pub(crate) region: String,
    pub(crate) aborting: Aborting,
}

/// Reads an environment variable.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A bucket that a predecessor has found in a region is not tried again: programs wait, and a server that is slow just now
/// must not end the mount.
pub(crate) fn connect(
    options: &Options,
    path: &S3Path,
    part_sizes: (usize, usize),
    pool: PagedPool,
    telemetry: &Arc<Telemetry>,
    found_in: Option<&str>,
    variable: Variable<'_>,
) -> Result<Connected, Refused> {
    let driver_region = variable("AWS_REGION");
    let regions = RegionSources {
        volume: options.region.as_deref(),
        driver: driver_region.as_deref(),
        ..RegionSources::default()
    };
    let mut region = found_in.unwrap_or_else(|| regions.effective()).to_owned();
    let endpoint_url = options.endpoint_url.clone().or_else(|| variable("AWS_ENDPOINT_URL"));
    let endpoint_url = endpoint_url.filter(|url| !url.is_empty());
    let ca_bundle = options.ca_bundle.clone().or_else(|| variable("AWS_CA_BUNDLE").map(PathBuf::from));
    let ca_bundle = ca_bundle.filter(|bundle| !bundle.as_os_str().is_empty());
    // A file that may be in a cache is not fetched before it is read.
    let first_reads =
        if options.caches_contents() { 0 } else { memory::for_first_reads(pool.mem_limit(), part_sizes.0) };
    let config = client_config(options, part_sizes, pool, ca_bundle.as_deref())?;
    let config = config.telemetry_callback(Arc::<Telemetry>::clone(telemetry));
    let mut redirected = false;
    let until = Instant::now() + S3_ANSWER;
    let profile = options.profile.as_deref();
    let source = Source::find(options.no_sign_request, profile, ca_bundle.as_deref(), variable);
    loop {
        let endpoint = endpoint_config(options, &path.bucket, &region, endpoint_url.as_deref())?;
        let route = Route::to(&path.bucket, &endpoint, ca_bundle.as_deref(), variable);
        let requested = RequestedBucket {
            bucket: path.bucket.to_string(),
            endpoint: endpoint_url.clone().unwrap_or_else(|| format!("Amazon S3 in {region}")),
            region: region.clone(),
            identity: source.identity(),
            proxy: route.as_ref().and_then(Route::proxy).map(str::to_owned),
        };
        let recipe =
            Recipe { config: config.clone().endpoint_config(endpoint.clone()), source: source.clone() };
        // Before the keys are read: if they change in between, the first request notices.
        let stamp = recipe.source.file().and_then(stamp);
        let made = recipe.source.keys().map_err(ClientError::from);
        let made = made.and_then(|keys| Ok((recipe.make(keys.as_ref())?, keys)));
        let (first, keys) = made.map_err(|error| refusal::of_client(&error, &requested))?;
        let outcome = match found_in {
            Some(_) => Outcome::Answer(Ok(())),
            None => attempt(&first, path, route, until),
        };
        match outcome {
            Outcome::Answer(Ok(())) => {
                let personality = personality(options, path, &endpoint, endpoint_url.as_deref())?;
                let rights = Rights {
                    rename: personality.supports_rename_object(),
                    overwrite: options.allow_overwrite,
                };
                let savings = Savings {
                    single_put: !options.library_front,
                    first_reads,
                    exact_reads: !options.caches_contents(),
                };
                let seen = Seen::new(stamp, keys);
                let timeout = Arc::clone(&telemetry.server_timeout);
                let client = Client::new(recipe, first.clone(), seen, rights, savings, timeout);
                let aborting = Aborting {
                    bucket: path.bucket.to_string(),
                    endpoint,
                    source,
                    ca_bundle,
                    network_interfaces: options.bind.clone().unwrap_or_default(),
                    headers: headers(options),
                    event_loops: first.event_loop_group(),
                };
                return Ok(Connected { client, first, personality, region, aborting });
            }
            Outcome::Answer(Err(ObjectClientError::ClientError(S3RequestError::IncorrectRegion(
                right,
                _,
            )))) if !regions.is_named() && !redirected => {
                redirected = true;
                region = right;
            }
            Outcome::Answer(Err(error)) => return Err(refusal::of_listing(&error, &requested)),
            Outcome::Diagnosis(refused) => return Err(refused),
            Outcome::Timeout => {
                let (server, limit) = (requested.server(), S3_ANSWER.as_secs());
                let doubt = match requested.proxy {
                    Some(_) => "does the proxy allow it, and is the server overloaded?",
                    None => "is it overloaded?",
                };
                let message = format!(
                    "{server} did not answer within {limit} s, or only with temporary errors such as 503: {doubt}"
                );
                return Err(Refused::new(Code::TimedOut, message));
            }
        }
    }
}

/// The kind of the bucket. Only Amazon has directory buckets: on other servers, requests that only such buckets know
/// destroy data.
fn personality(
    options: &Options,
    path: &S3Path,
    endpoint: &EndpointConfig,
    url: Option<&str>,
) -> Result<S3Personality, Refused> {
    let inferred = S3Personality::infer_from_bucket(&path.bucket, endpoint);
    let directory = is_amazon(url) && inferred.supports_rename_object();
    match options.personality() {
        Some(wanted) if wanted.supports_rename_object() && !directory => {
            let message = format!(
                "invalid `bucket-type` `directory`: bucket `{}` is not a directory bucket, which only Amazon has, with names \
                 that end in --x-s3; remove the option",
                path.bucket
            );
            Err(Refused::new(Code::BadOption, message))
        }
        Some(wanted) => Ok(wanted),
        None if inferred.supports_rename_object() && !directory => Ok(S3Personality::Standard),
        None => Ok(inferred),
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

/// Of requests that the S3 client does not make.
fn headers(options: &Options) -> Vec<(&'static str, String)> {
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

type Answer = Result<(), ObjectClientError<ListObjectsError, S3RequestError>>;

enum Outcome {
    Answer(Answer),
    /// Why there is no answer.
    Diagnosis(Refused),
    Timeout,
}

/// One small listing; if that takes long, a diagnosis beside it.
fn attempt(client: &S3CrtClient, path: &S3Path, route: Option<Route>, until: Instant) -> Outcome {
    let (listed, answers) = mpsc::channel();
    let (client, path) = (client.clone(), path.clone());
    // Once there is an outcome, no one receives from the threads any more.
    thread::spawn(move || {
        let listing = client.list_objects(&path.bucket, None, "", 0, path.prefix.as_str());
        let _ = listed.send(futures::executor::block_on(listing).map(drop));
    });
    if let Ok(answer) = answers.recv_timeout(DIAGNOSE_AFTER) {
        return Outcome::Answer(answer);
    }
    let (diagnosed, findings) = mpsc::channel();
    if let Some(route) = route {
        thread::spawn(move || route.diagnose().map(|refused| diagnosed.send(refused)));
    }
    let mut diagnosis: Option<(Refused, Instant)> = None;
    while Instant::now() < until {
        match answers.recv_timeout(CHECK_EVERY) {
            Ok(answer) => return Outcome::Answer(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if let Ok(refused) = findings.try_recv() {
            diagnosis = Some((refused, Instant::now()));
        }
        match diagnosis {
            Some((refused, at)) if at.elapsed() >= DIAGNOSE_GRACE => return Outcome::Diagnosis(refused),
            _ => {}
        }
    }
    diagnosis.map_or(Outcome::Timeout, |(refused, _)| Outcome::Diagnosis(refused))
}
