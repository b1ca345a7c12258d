//! Where the S3 server is: one address, or at Amazon one for each region.

use std::borrow::Cow;

use contract::s3::{DEFAULT_REGION, amazon_endpoint, is_amazon, is_region};
use thiserror::Error;
use url::Url;

#[derive(Debug, Error)]
#[error("invalid `--endpoint-url` \"{address}\": {reason}")]
pub struct EndpointError {
    address: String,
    reason: String,
}

pub struct Endpoint {
    /// `None` for Amazon's.
    url: Option<Url>,
    /// The URL as configured.
    address: String,
    default_region: String,
}

impl Endpoint {
    /// An empty one is Amazon's.
    pub fn parse(endpoint: &str, region: &str) -> Result<Self, EndpointError> {
        let default_region = if region.is_empty() { DEFAULT_REGION } else { region };
        let (address, is_given) = match endpoint.trim_end_matches('/') {
            "" => (amazon_endpoint(default_region), false),
            address => (address.to_owned(), true),
        };
        let unusable = |reason: String| EndpointError { address: address.clone(), reason };
        let url: Url = address.parse().map_err(|error: url::ParseError| unusable(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(unusable("it needs http:// or https:// and a host".to_owned()));
        }
        Ok(Self { url: is_given.then_some(url), address, default_region: default_region.to_owned() })
    }

    /// The region that volumes are mounted with unless they say otherwise.
    pub fn default_region(&self) -> &str {
        &self.default_region
    }

    /// The endpoint of a region, or of the driver's: for comparisons and messages.
    pub fn address(&self, region: Option<&str>) -> Cow<'_, str> {
        match region.filter(|_| self.url.is_none()) {
            Some(region) => Cow::Owned(amazon_endpoint(region)),
            None => Cow::Borrowed(&self.address),
        }
    }

    /// `None` for an invalid region, which could choose another host.
    pub(super) fn url(&self, region: &str) -> Option<Url> {
        let amazon = || is_region(region).then(|| amazon_endpoint(region).parse().ok())?;
        self.url.clone().or_else(amazon)
    }

    pub(super) fn is_amazon(&self) -> bool {
        is_amazon(self.url.as_ref().map(Url::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(endpoint: &str) -> Endpoint {
        Endpoint::parse(endpoint, "us-east-2").unwrap()
    }

    #[test]
    fn amazon_has_a_server_in_each_region() {
        let amazon = server("");
        let url = |region: &str| amazon.url(region).map(String::from);
        assert_eq!(url("eu-west-1").as_deref(), Some("https://s3.eu-west-1.amazonaws.com/"));
        assert_eq!(amazon.address(Some("eu-west-1")), "https://s3.eu-west-1.amazonaws.com");
        assert_eq!(amazon.address(None), "https://s3.us-east-2.amazonaws.com");
        for region in ["evil.test/", "a@evil.test:80#", "x.evil.test?", ""] {
            assert_eq!(url(region), None, "{region}");
        }
    }

    #[test]
    fn any_other_server_has_all_regions() {
        let other = server("http://s3.test:8000/");
        assert_eq!(other.url("eu-west-1").map(String::from).as_deref(), Some("http://s3.test:8000/"));
        assert_eq!(other.address(Some("eu-west-1")), "http://s3.test:8000");
        assert!(!other.is_amazon() && server("https://s3.eu-west-1.amazonaws.com").is_amazon());
    }
}
