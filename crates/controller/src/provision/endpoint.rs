//! Where the S3 server is: one address, or at Amazon one for each region.

use std::borrow::Cow;

use contract::options::is_region;
use thiserror::Error;
use url::Url;

/// What S3 takes for granted.
pub(super) const DEFAULT_REGION: &str = "us-east-1";

#[derive(Debug, Error)]
#[error("the S3 endpoint is `{address}` (--endpoint-url), which is not the URL of a server: {reason}")]
pub struct EndpointError {
    address: String,
    reason: String,
}

pub struct Endpoint {
    /// Nothing for Amazon's.
    url: Option<Url>,
    /// As people write it.
    address: String,
    home: String,
}

impl Endpoint {
    /// An empty one is Amazon's, as for mounts.
    pub fn parse(endpoint: &str, region: &str) -> Result<Self, EndpointError> {
        let home = if region.is_empty() { DEFAULT_REGION } else { region };
        let (address, is_given) = match endpoint.trim_end_matches('/') {
            "" => (amazon(home), false),
            address => (address.to_owned(), true),
        };
        let unusable = |reason: String| EndpointError { address: address.clone(), reason };
        let url: Url = address.parse().map_err(|error: url::ParseError| unusable(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(unusable("it needs http:// or https:// and a host".to_owned()));
        }
        Ok(Self { url: is_given.then_some(url), address, home: home.to_owned() })
    }

    /// The region that volumes are mounted with unless they say otherwise.
    pub fn home(&self) -> &str {
        &self.home
    }

    /// Where buckets of a region are, else of the driver's: for comparisons and sentences.
    pub fn address(&self, region: Option<&str>) -> Cow<'_, str> {
        match region.filter(|_| self.url.is_none()) {
            Some(region) => Cow::Owned(amazon(region)),
            None => Cow::Borrowed(&self.address),
        }
    }

    /// Nothing for what is no region: the author of a claim may have written it, and must not choose the host.
    pub(super) fn url(&self, region: &str) -> Option<Url> {
        let amazon = || is_region(region).then(|| amazon(region).parse().ok())?;
        self.url.clone().or_else(amazon)
    }

    pub(super) fn is_amazon(&self) -> bool {
        let host = self.url.as_ref().map(|url| url.host_str().unwrap_or_default());
        host.is_none_or(|host| host.ends_with(".amazonaws.com"))
    }
}

fn amazon(region: &str) -> String {
    format!("https://s3.{region}.amazonaws.com")
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
