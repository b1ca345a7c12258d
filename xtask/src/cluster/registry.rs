//! The registry from which the node pulls `image: busybox`, as in the examples: a bucket of its own S3 server, with objects
//! named like a registry's paths. The node's network cannot reach any other registry.

use anyhow::Result;

use super::Cluster;
use crate::image;
use crate::s3::{Client, ENDPOINT, ROOT};

/// Also in `templates/hosts.toml`.
const BUCKET: &str = "registry";
/// The full name of `busybox`.
const REPOSITORY: &str = "v2/library/busybox";
/// Public, because containerd has no keys.
const POLICY: &str = r#"{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::registry/*"}
]}"#;

pub(crate) fn publish(cluster: &Cluster) -> Result<()> {
    let server = Client::new(ENDPOINT, ROOT)?;
    server.create_bucket(BUCKET)?;
    server.put_policy(BUCKET, POLICY)?;
    let layout = image::pulled(cluster.cache())?;
    for (digest, content) in &layout.blobs {
        server.put(BUCKET, &format!("{REPOSITORY}/blobs/{digest}"), content)?;
    }
    for name in [layout.digest.as_str(), "latest"] {
        let key = format!("{REPOSITORY}/manifests/{name}");
        server.put_as(BUCKET, &key, image::MANIFEST, &layout.manifest)?;
    }
    Ok(())
}
