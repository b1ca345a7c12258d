//! From options to an S3 client that is known to work: credentials, region and bucket are tried before anything is served, so
//! that a mistake becomes an error of the mount.

mod attempt;
mod configuration;
mod endpoint;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use contract::s3::{RegionSources, is_amazon};
use mounter::deadlines::S3_ANSWER;
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::config::{EndpointConfig, S3ClientConfig};
use mountpoint_s3_client::error::ObjectClientError;
use mountpoint_s3_client::{S3CrtClient, S3RequestError};
use mountpoint_s3_fs::memory::PagedPool;
use mountpoint_s3_fs::s3::{S3Path, S3Personality};

use crate::client::{Client, ClientError, Recipe, Renames, Rights, Savings, Seen};
use crate::credentials::{Source, stamp};
use crate::diagnose::Route;
use crate::kept_keys::KeptKeys;
use crate::memory;
use crate::options::Options;
use crate::raw_client::{Bucket, RawClients};
use crate::refusal::{self, RequestedBucket};
use crate::telemetry::Telemetry;

use attempt::{Outcome, attempt};
use configuration::{client_config, headers};
use endpoint::endpoint_config;

pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) first: S3CrtClient,
    pub(crate) personality: S3Personality,
    pub(crate) region: String,
}

/// Reads an environment variable.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A bucket that a predecessor has found in a region is not tried again, and its keys are used on: programs wait, and a server
/// that is slow or away just now must not end the mount.
pub(crate) fn connect(
    options: &Options,
    part_sizes: (usize, usize),
    pool: PagedPool,
    telemetry: &Arc<Telemetry>,
    found_in: Option<&str>,
    variable: Variable<'_>,
) -> Result<Connected, Refused> {
    // A file that may be in a cache is not fetched before it is read.
    let first_reads =
        if options.caches_contents() { 0 } else { memory::for_first_reads(pool.mem_limit(), part_sizes.0) };
    let server = Server::resolve(options, part_sizes, pool, telemetry, variable)?;
    let regional = match found_in {
        Some(region) => server.in_region(region, true)?,
        None => server.find()?,
    };
    server.connected(regional, first_reads, Arc::clone(telemetry))
}

/// Everything that requests need in any region.
struct Server<'a> {
    options: &'a Options,
    path: S3Path,
    url: Option<String>,
    ca_bundle: Option<PathBuf>,
    source: Source,
    config: S3ClientConfig,
    variable: Variable<'a>,
}

/// The server in one region.
struct Regional {
    region: String,
    endpoint: EndpointConfig,
    route: Option<Route>,
    requested: RequestedBucket,
    recipe: Recipe,
    first: S3CrtClient,
    seen: Seen,
}

/// Why a region is not used.
struct Failed {
    refused: Refused,
    /// The region in which the server says that the bucket is.
    found_in: Option<String>,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self { refused, found_in: None }
    }
}

impl<'a> Server<'a> {
    fn resolve(
        options: &'a Options,
        part_sizes: (usize, usize),
        pool: PagedPool,
        telemetry: &Arc<Telemetry>,
        variable: Variable<'a>,
    ) -> Result<Self, Refused> {
        let url = options.endpoint_url.clone().or_else(|| variable("AWS_ENDPOINT_URL"));
        let ca_bundle = options.ca_bundle.clone().or_else(|| variable("AWS_CA_BUNDLE").map(PathBuf::from));
        let ca_bundle = ca_bundle.filter(|bundle| !bundle.as_os_str().is_empty());
        let config = client_config(options, part_sizes, pool, ca_bundle.as_deref())?;
        let profile = options.profile.as_deref();
        Ok(Self {
            options,
            path: options.path()?,
            url: url.filter(|url| !url.is_empty()),
            source: Source::find(options.no_sign_request, profile, ca_bundle.as_deref(), variable),
            ca_bundle,
            config: config.telemetry_callback(Arc::<Telemetry>::clone(telemetry)),
            variable,
        })
    }

    /// Follows a redirect to another region once, and only where none is configured.
    fn find(&self) -> Result<Regional, Refused> {
        let driver_region = (self.variable)("AWS_REGION");
        let regions = RegionSources {
            volume: self.options.region.as_deref(),
            driver: driver_region.as_deref(),
            ..RegionSources::default()
        };
        let until = Instant::now() + S3_ANSWER;
        let tried = match self.try_region(regions.effective(), until) {
            Err(Failed { found_in: Some(region), .. }) if !regions.is_named() => {
                self.try_region(&region, until)
            }
            tried => tried,
        };
        tried.map_err(|failed| failed.refused)
    }

    fn try_region(&self, region: &str, until: Instant) -> Result<Regional, Failed> {
        let regional = self.in_region(region, false)?;
        let Regional { first, route, requested, .. } = &regional;
        match attempt(first, &self.path, route.clone(), until) {
            Outcome::Answer(Ok(())) => Ok(regional),
            Outcome::Answer(Err(error)) => {
                let refused = refusal::of_listing(&error, requested);
                let found_in = match error {
                    ObjectClientError::ClientError(S3RequestError::IncorrectRegion(region, _)) => {
                        Some(region)
                    }
                    _ => None,
                };
                Err(Failed { refused, found_in })
            }
            Outcome::Diagnosis(refused) => Err(refused.into()),
            Outcome::Timeout => Err(refusal::of_silence(requested).into()),
        }
    }

    fn in_region(&self, region: &str, is_successor: bool) -> Result<Regional, Refused> {
        let Self { options, path, url, ca_bundle, source, config, variable } = self;
        let endpoint = endpoint_config(options, &path.bucket, region, url.as_deref())?;
        let route = Route::to(&path.bucket, &endpoint, ca_bundle.as_deref(), variable);
        let requested = RequestedBucket {
            bucket: path.bucket.to_string(),
            endpoint: url.clone().unwrap_or_else(|| format!("Amazon S3 in {region}")),
            region: region.to_owned(),
            identity: source.identity(),
            proxy: route.as_ref().and_then(Route::proxy).map(str::to_owned),
        };
        let config = config.clone().endpoint_config(endpoint.clone());
        let kept = KeptKeys::of(source, options.survival_folder.as_deref());
        let recipe = Recipe { config, source: source.clone(), kept };
        // Before the keys are read: if they change in between, the first request notices.
        let stamp = source.file().and_then(stamp);
        let keys = match &recipe.kept {
            Some(kept) if is_successor => kept.or_new(source),
            _ => source.keys(),
        };
        let made = keys.map_err(ClientError::from).and_then(|keys| Ok((recipe.make(keys.as_ref())?, keys)));
        let (first, keys) = made.map_err(|error| refusal::of_client(&error, &requested))?;
        recipe.keep(keys.as_ref());
        let (region, seen) = (region.to_owned(), Seen::new(stamp, keys));
        Ok(Regional { region, endpoint, route, requested, recipe, first, seen })
    }

    fn connected(
        self,
        regional: Regional,
        first_reads: usize,
        telemetry: Arc<Telemetry>,
    ) -> Result<Connected, Refused> {
        let Self { options, path, url, ca_bundle, .. } = self;
        let Regional { region, endpoint, recipe, first, seen, .. } = regional;
        let personality = personality(options, &path, &endpoint, url.as_deref())?;
        let renames = match options.rename_by_copy {
            _ if personality.supports_rename_object() => Renames::ByServer,
            true => Renames::ByCopy,
            false => Renames::Refused,
        };
        let rights = Rights { renames, overwrite: options.allow_overwrite };
        let savings = Savings {
            single_put: !options.library_front,
            first_reads,
            exact_reads: !options.caches_contents(),
        };
        let raw = RawClients::new(Bucket {
            name: path.bucket.to_string(),
            endpoint,
            ca_bundle,
            network_interfaces: options.bind.clone().unwrap_or_default(),
            headers: headers(options),
            event_loops: first.event_loop_group(),
            telemetry,
        });
        let client = Client::new(recipe, first.clone(), seen, rights, savings, raw);
        Ok(Connected { client, first, personality, region })
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
