//! Where the node pulls `image: busybox` from, which is what examples and people write: a bucket of its own S3 server, with
//! objects named as a registry names them. The node's network has no way to another registry.

use anyhow::Result;

use super::Cluster;
use crate::image;
use crate::s3::{Client, ENDPOINT, ROOT};

/// Also in `templates/hosts.toml`.
const BUCKET: &str = "registry";
/// What a runtime makes of `busybox`.
const REPOSITORY: &str = "v2/library/busybox";
/// containerd has no keys.
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
