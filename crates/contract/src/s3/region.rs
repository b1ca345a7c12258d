//! Regions and Amazon's endpoints.

/// What S3 takes for granted where no region is named.
pub const DEFAULT_REGION: &str = "us-east-1";
/// A label of a host name.
const LONGEST_REGION: usize = 63;
/// For error texts.
pub const REGIONS: &str = "regions have up to 63 letters, digits, dashes or underscores, such as us-east-1";

/// The same as [`is_region`], for admission policies.
pub const REGION_PATTERN: &str = "[A-Za-z0-9_-]{1,63}";

/// A region becomes part of a host name and of the signature: the author of a volume must not choose more with it.
pub fn is_region(text: &str) -> bool {
    let usual = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=LONGEST_REGION).contains(&text.len()) && text.chars().all(usual)
}

/// Where a region can be named. An empty name counts as none.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionSources<'a> {
    /// The mount option or the class parameter `region`.
    pub volume: Option<&'a str>,
    /// The key `region` of the Secret with the credentials.
    pub secret: Option<&'a str>,
    /// The driver's own setting.
    pub driver: Option<&'a str>,
}

impl<'a> RegionSources<'a> {
    /// What was named for this volume in particular.
    pub fn explicit(self) -> Option<&'a str> {
        named(self.volume).or(named(self.secret))
    }

    /// Whether any of them names one; otherwise a redirect of the server may be followed.
    pub fn is_named(self) -> bool {
        self.explicit().or(named(self.driver)).is_some()
    }

    /// What requests are signed for.
    pub fn effective(self) -> &'a str {
        self.explicit().or(named(self.driver)).unwrap_or(DEFAULT_REGION)
    }
}

fn named(region: Option<&str>) -> Option<&str> {
    region.map(str::trim).filter(|region| !region.is_empty())
}

/// Amazon's endpoint of a region.
pub fn amazon_endpoint(region: &str) -> String {
    amazon("s3", region)
}

/// Amazon's STS of a region.
pub fn sts_endpoint(region: &str) -> String {
    amazon("sts", region)
}

fn amazon(service: &str, region: &str) -> String {
    let partition = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://{service}.{region}.amazonaws.com{partition}")
}

/// Whether an endpoint is Amazon's; so is the one that is used where none is configured.
pub fn is_amazon(endpoint_url: Option<&str>) -> bool {
    let Some(url) = endpoint_url.filter(|url| !url.is_empty()) else { return true };
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
    host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_outranks_its_secret_and_that_the_driver() {
        let all = RegionSources { volume: Some("v"), secret: Some("s"), driver: Some("d") };
        assert_eq!((all.explicit(), all.effective()), (Some("v"), "v"));
        let secret = RegionSources { volume: Some(" "), ..all };
        assert_eq!((secret.explicit(), secret.effective()), (Some("s"), "s"));
        let driver = RegionSources { volume: None, secret: None, ..all };
        assert_eq!((driver.explicit(), driver.effective()), (None, "d"));
        assert_eq!(
            RegionSources { driver: Some(""), ..RegionSources::default() }.effective(),
            DEFAULT_REGION
        );
    }

    #[test]
    fn amazon_is_recognised_by_the_host() {
        for amazon in [
            None,
            Some(""),
            Some("https://s3.eu-west-1.amazonaws.com"),
            Some("https://s3.eu-west-1.amazonaws.com:443/path"),
            Some("https://S3.cn-north-1.amazonaws.com.cn/"),
            Some(amazon_endpoint("cn-north-1").as_str()),
        ] {
            assert!(is_amazon(amazon), "{amazon:?}");
        }
        for other in [
            "http://s3.test:8000",
            "http://s3.test/x.amazonaws.com",
            "http://s3.amazonaws.com@s3.test/",
            "http://s3.test?.amazonaws.com",
            "http://amazonaws.com.evil.test",
        ] {
            assert!(!is_amazon(Some(other)), "{other}");
        }
    }

    #[test]
    fn sts_is_asked_in_a_region() {
        assert_eq!(sts_endpoint("eu-west-1"), "https://sts.eu-west-1.amazonaws.com");
        assert_eq!(sts_endpoint("cn-north-1"), "https://sts.cn-north-1.amazonaws.com.cn");
    }

    #[test]
    fn a_region_is_one_label() {
        let pattern = regex::Regex::new(&format!("^({REGION_PATTERN})$")).unwrap();
        for right in ["us-east-1", "my_region-7", &"x".repeat(LONGEST_REGION)] {
            assert!(is_region(right) && pattern.is_match(right), "{right}");
        }
        for wrong in ["", "a.evil.example/#", "eu west", "a\r\nx: y", "a/b", "é", &"x".repeat(64)] {
            assert!(!is_region(wrong) && !pattern.is_match(wrong), "{wrong}");
        }
    }
}
