//! The nodes of a cluster: their names, addresses and paths. The first node also runs the control plane, DNS and the S3 server,
//! and is the only one in a cluster of one node. The others are created inside it.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Cluster;

/// Enough for every test; names and addresses have room for one digit.
pub const MOST_NODES: u8 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(u8);

impl Node {
    pub const FIRST: Self = Self(1);

    /// The nodes of a cluster of this size.
    pub fn all(number: u8) -> impl Iterator<Item = Self> {
        (1..=number).map(Self)
    }

    pub fn name(self) -> String {
        format!("node-{}", self.0)
    }

    /// The address in the network of all nodes.
    pub fn address(self) -> String {
        format!("10.99.0.{}", self.0)
    }

    /// The hardware address of its interface. It is fixed, so that the neighbour tables of other nodes stay valid after a power
    /// cut.
    pub(crate) fn hardware_address(self) -> String {
        format!("02:00:0a:63:00:0{}", self.0)
    }

    /// The address range of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0 - 1)
    }

    /// The same for IPv6, reachable on this node only.
    pub(crate) fn pods_ipv6(self) -> String {
        format!("fd00:10:244:{}::/64", self.0 - 1)
    }

    /// The name of its kubelet's client certificate, key and kubeconfig.
    pub(crate) fn kubelet_files(self) -> String {
        format!("kubelet-{}", self.name())
    }

    /// The name of its kubelet's server certificate and key.
    pub(crate) fn serving_files(self) -> String {
        format!("kubelet-serving-{}", self.name())
    }
}

impl Cluster {
    pub fn nodes(&self) -> Result<Vec<Node>> {
        Ok(Node::all(self.plan()?.nodes).collect())
    }

    pub fn node(&self, name: &str) -> Result<Node> {
        let found = self.nodes()?.into_iter().find(|node| node.name() == name);
        found.with_context(|| format!("cluster `{}` has no node `{name}`", self.name))
    }

    /// The directory with the node's configuration, logs and disk.
    pub(crate) fn home(&self, node: Node) -> PathBuf {
        match node {
            Node::FIRST => self.dir.clone(),
            _ => self.dir.join("nodes").join(node.name()),
        }
    }

    pub fn logs(&self, node: Node) -> PathBuf {
        self.home(node).join("log")
    }

    pub fn log_on(&self, node: Node, part: &str) -> PathBuf {
        self.logs(node).join(format!("{part}.log"))
    }

    /// The files that survive a power cut.
    pub fn disk(&self, node: Node) -> PathBuf {
        self.home(node).join("state")
    }

    pub(crate) fn etc(&self, node: Node, file: &str) -> PathBuf {
        self.home(node).join("etc").join(file)
    }

    /// Exists once the node was ready for the first time.
    pub(crate) fn usable(&self, node: Node) -> PathBuf {
        self.home(node).join("usable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_nodes_have_anything_in_common() {
        let nodes: Vec<Node> = Node::all(MOST_NODES).collect();
        assert_eq!(nodes[0], Node::FIRST);
        for of in [Node::name, Node::address, Node::hardware_address, Node::pods] {
            let all: std::collections::BTreeSet<String> = nodes.iter().map(|node| of(*node)).collect();
            assert_eq!(all.len(), nodes.len());
        }
        assert_eq!(
            (Node::FIRST.name(), Node::FIRST.address()),
            ("node-1".to_owned(), "10.99.0.1".to_owned())
        );
    }
}
