//! The network of each node. A cable (a veth pair) connects every other node to the bridge of the first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Cluster, Node};
use crate::command::run;

/// The interface with the node's address: the bridge of the first node, the end of the cable in any other.
const CARD: &str = "node0";

/// A bridge has the first node's address, so that no network card is needed. The default route leads nowhere, but the kubelet
/// and the API server refuse to start without one.
pub(crate) fn own(node: Node, nodes: &[Node]) -> Result<()> {
    ip("link set lo up")?;
    if node == Node::FIRST {
        // Without its own hardware address, a bridge uses that of a connected interface, which changes.
        ip(&format!("link add {CARD} address {} type bridge", node.hardware_address()))?;
    }
    ip(&format!("address add {}/24 dev {CARD}", node.address()))?;
    ip(&format!("link set {CARD} up"))?;
    ip(&format!("route add default dev {CARD}"))?;
    for other in nodes.iter().filter(|other| **other != node) {
        ip(&format!("route add {} via {}", other.pods(), other.address()))?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot let pods reach the node")
}

/// Where the node's pods get their addresses from, and their routes, for the network plugin. Pods reach their own node by IPv6, too,
/// unless the kernel has none.
pub(crate) fn of_pods(node: Node) -> (Value, Value) {
    let mut ranges = vec![json!([{"subnet": node.pods()}])];
    let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
    if Path::new("/proc/sys/net/ipv6").exists() {
        ranges.push(json!([{"subnet": node.pods_ipv6()}]));
        routes.push(json!({"dst": "::/0"}));
    }
    (ranges.into(), routes.into())
}

/// Creates the network of a node before it starts, and its cable to the first node, in which this process runs.
pub(crate) fn plug_in(node: Node) -> Result<()> {
    let name = node.name();
    unplug(node)?;
    ip(&format!("netns add {name}"))?;
    let card = format!("peer name {CARD} address {} netns {name}", node.hardware_address());
    ip(&format!("link add {name} type veth {card}"))?;
    ip(&format!("link set {name} master {CARD} up"))
}

/// Removes what [`plug_in`] created, if it exists.
pub(crate) fn unplug(node: Node) -> Result<()> {
    let name = node.name();
    // Fails if the network namespace is already gone, because the kernel then removed the cable.
    let _ = ip(&format!("link delete {name}"));
    if namespace(node).exists() {
        ip(&format!("netns delete {name}"))?;
    }
    Ok(())
}

/// The network namespace of a node, which exists even if no process runs in it.
pub(crate) fn namespace(node: Node) -> PathBuf {
    Path::new("/run/netns").join(node.name())
}

/// Disconnects a node's cable, or connects it again.
pub(crate) fn cable(node: Node, connected: bool) -> Result<()> {
    ip(&format!("link set {} {}", node.name(), if connected { "up" } else { "down" }))
}

impl Cluster {
    /// Cuts the node off from all others: packets are lost, and no connection is closed. Call it in the first node.
    pub fn cut_off(&self, node: Node) -> Result<()> {
        cable(node, false)
    }

    /// Undoes [`Cluster::cut_off`].
    pub fn reconnect(&self, node: Node) -> Result<()> {
        cable(node, true)
    }
}

fn ip(line: &str) -> Result<()> {
    run(Command::new("ip").args(line.split(' ')))
}
