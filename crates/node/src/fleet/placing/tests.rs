//! What keeps a session on its machine, and what a client is told when no node takes it.

use serde_json::json;
use windlass_protocol::fleet_view::NodeStanding;

use super::*;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

#[test]
fn what_is_of_the_machine_keeps_a_session_there() {
    for (wanted, expected) in [
        (json!({}), None),
        (json!({"id": "s1", "worker": "python", "owner": "me", "env": {"A": "b"}}), None),
        (json!({"worker": "shell", "idle_s": 5, "allow_packages": true}), None),
        (json!({"policy": {"preset": "workspace", "hidden": ["~/x"]}}), None),
        (json!({"policy": {"readable": []}}), None),
        (json!({"workspace": "here"}), Some("`workspace`")),
        (json!({"interpreter": "python3.12"}), Some("`interpreter`")),
        (json!({"environment": "e1"}), Some("`environment`")),
        (json!({"worker": "agent:codex"}), Some("`worker`")),
        (json!({"worker": "jupyter:ir"}), Some("`worker`")),
        (json!({"worker": "of-the-configuration"}), Some("`worker`")),
        (json!({"policy": {"writable": ["/data"]}}), Some("`policy.writable`")),
        (json!({"policy": {"readable": ["/data"]}}), Some("`policy.readable`")),
        (json!({"policy": {"environment": ["LANG"]}}), Some("`policy.environment`")),
        (json!({"policy": {"tools": ["files.*"]}}), Some("`policy.tools`")),
    ] {
        let create: CreateSession = serde_json::from_value(wanted.clone()).unwrap();
        assert_eq!(names_something_local(&create), expected, "{wanted}");
    }
}

#[test]
fn some_nodes_are_chosen_at_random_and_each_once() {
    let all: Vec<NodeName> = (0..10).map(|number| name(&format!("n{number}"))).collect();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200_u64 {
        let mut some = all.clone();
        choose_some(&mut some, 3, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let different: std::collections::BTreeSet<_> = some.iter().cloned().collect();
        assert_eq!((some.len(), different.len()), (3, 3));
        seen.extend(some);
    }
    assert_eq!(seen.len(), all.len());
    let mut few = all[..2].to_vec();
    choose_some(&mut few, 3, 7);
    assert_eq!(few.len(), 2);
    let mut none = Vec::new();
    choose_some(&mut none, 3, 7);
    assert!(none.is_empty());
}

#[test]
fn the_refusal_says_what_each_node_said() {
    let no_memory =
        || PlacementRefusal::NoMemory { available_bytes: 100 << 20, reserve_bytes: 256 << 20 };
    let closed = || PlacementRefusal::NotServing(NodeStanding::Closed);
    for (whys, code) in [
        (vec![PlacementRefusal::Cordoned, PlacementRefusal::Cordoned], ErrorCode::Cordoned),
        (vec![PlacementRefusal::Cordoned, no_memory()], ErrorCode::Overloaded),
        (vec![closed(), PlacementRefusal::NoAnswer], ErrorCode::FleetUnavailable),
        (vec![PlacementRefusal::NoAnswer], ErrorCode::NodeUnreachable),
        (vec![PlacementRefusal::OtherLabels], ErrorCode::BadRequest),
        (vec![PlacementRefusal::OtherLabels, no_memory()], ErrorCode::Overloaded),
        (vec![], ErrorCode::Overloaded),
    ] {
        let refusals: Vec<_> =
            whys.into_iter().enumerate().map(|(at, why)| (name(&format!("n{at}")), why)).collect();
        assert_eq!(no_room(&refusals, UnaskedNodes::default()).code, code, "{refusals:?}");
    }
    let two = [(name("n1"), no_memory()), (name("n2"), PlacementRefusal::NoAnswer)];
    let failure = no_room(&two, UnaskedNodes::default());
    assert_eq!(
        failure.message,
        "no node takes the session; of those that were asked: n1 has 100 MiB of memory left and keeps 256 MiB in \
         reserve; n2 did not answer in time"
    );
    let many: Vec<_> = (0..20).map(|at| (name(&format!("n{at}")), no_memory())).collect();
    assert!(no_room(&many, UnaskedNodes::default()).message.ends_with("; and 12 more"));
    // Another try asks other nodes, and one of them may have the labels.
    let labels = [(name("n1"), PlacementRefusal::OtherLabels)];
    let failure = no_room(&labels, UnaskedNodes { too_many: 40, cordoned: 0 });
    assert!(failure.code.retryable(), "{failure:?}");
    assert!(
        failure.message.ends_with("; 40 other nodes were not asked, so try again"),
        "{failure:?}"
    );
}

/// A node with the labels is cordoned: the answer is the same while that is remembered.
#[test]
fn a_cordoned_node_with_the_labels_makes_no_request_wrong() {
    let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
    let known = |cordoned, labels: &BTreeMap<String, String>| KnownNode {
        at: Instant::now(),
        cordoned,
        labels: labels.clone(),
    };
    let nodes = KnownNodes(HashMap::from([
        (name("n2"), known(false, &BTreeMap::new())),
        (name("n3"), known(true, &labels)),
        (name("n4"), known(false, &labels)),
        (name("n5"), known(true, &BTreeMap::new())),
    ]));
    for (node, expected) in [
        ("n2", PlacementProspect::OtherLabels),
        ("n3", PlacementProspect::Cordoned),
        ("n4", PlacementProspect::MayTake),
        ("n5", PlacementProspect::OtherLabels),
        ("unknown", PlacementProspect::MayTake),
    ] {
        assert_eq!(nodes.prospect(&name(node), &labels), expected, "{node}");
    }
    let other = (name("n1"), PlacementRefusal::OtherLabels);
    let asked = [other.clone(), (name("n3"), PlacementRefusal::Cordoned)];
    let first = no_room(&asked, UnaskedNodes::default());
    let second = no_room(&[other], UnaskedNodes { too_many: 0, cordoned: 1 });
    assert_eq!(first.code, second.code);
    assert!(
        second.message.ends_with("; 1 other nodes that might take it are cordoned"),
        "{second:?}"
    );
}

#[test]
fn only_what_concerns_one_node_is_tried_at_the_next() {
    for code in ErrorCode::ALL {
        let expected =
            ["overloaded", "cordoned", "shutting_down", "fenced"].contains(&code.as_str());
        assert_eq!(is_of_node(*code), expected, "{code}");
    }
}
