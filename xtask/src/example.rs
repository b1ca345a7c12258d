//! The manifests in `examples/`, as they are or for a node without a registry.

use crate::image::BUSYBOX;

/// The same with the image that is on the node.
pub fn on_the_node(manifest: &str) -> String {
    manifest.replace("image: busybox\n", &format!("image: {BUSYBOX}\n"))
}
