//! What stops the links in between: node, node service.

use contract::names::HEADROOM_GATE;
use serde_json::json;

use super::scene::driver_pod;
use super::tests::{from, stops};
use super::*;
use crate::installation::HEADROOM;
use crate::workload::tests::pod;

#[test]
fn nodes_stop_the_chain() {
    let unscheduled = |it: &mut Snapshot| {
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
        it.pods = vec![pod(&json!({"conditions": conditions}))];
        it.pods[0].spec.as_mut().unwrap().node_name = None;
    };
    stops(unscheduled, Step::Node, "Unschedulable", "0/1 nodes");
    stops(|it| it.nodes.clear(), Step::Node, "NodeMissing", "n");
    stops(|it| it.nodes[0].status = None, Step::Node, "NodeNotReady", "kubelet");
    stops(|it| it.node_services.clear(), Step::NodeService, "NodeServiceMissing", "tolerations");
    let unready = |it: &mut Snapshot| it.node_services = vec![driver_pod("s3-csi-node-1", false)];
    stops(unready, Step::NodeService, "NodeServiceNotReady", "s3-csi-node-1");
    stops(|it| it.csi_nodes.clear(), Step::NodeService, "DriverNotRegistered", "kubeletPath");
}

#[test]
fn gates_stop_the_chain_until_they_are_removed() {
    let gated = |gate: &'static str, is_on: bool| {
        move |it: &mut Snapshot| {
            let spec = it.pods[0].spec.as_mut().unwrap();
            spec.node_name = None;
            spec.scheduling_gates = Some(from(json!([{"name": gate}])));
            let spec = it.deployments[0].spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            let value = if is_on { "class" } else { "" };
            let variables = HEADROOM.map(|name| json!({"name": name, "value": value}));
            spec.containers[0].env.as_mut().unwrap().extend(variables.map(from));
        }
    };
    stops(gated(HEADROOM_GATE, true), Step::Node, "SchedulingGated", "claims of the pod are bound");
    stops(gated(HEADROOM_GATE, false), Step::Node, "SchedulingGated", "`mountpointPod.reserveHeadroom`");
    stops(gated("example.com/other", true), Step::Node, "SchedulingGated", "example.com/other");
}
