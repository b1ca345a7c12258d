//! The nodes of a cluster: their names and addresses. The first node also runs the control plane, DNS and the S3 server,
//! and is the only one in a cluster of one node. The others are created inside it.

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
