//! What the programs agree on about S3 servers.

mod failure;
mod region;

pub use failure::S3Failure;
pub use region::{
    DEFAULT_REGION, REGION_PATTERN, REGIONS, RegionSources, amazon_endpoint, is_amazon, is_region,
    sts_endpoint,
};
