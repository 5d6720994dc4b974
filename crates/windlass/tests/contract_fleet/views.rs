//! Lines 103 and 107: what `windlass fleet` and `windlass ps --fleet` tell about nodes and sessions, with all nodes and
//! with a dead one.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_testkit::{TestFleetPlan, TestNode, eventually, run_ok};

use crate::{command, create, start};

/// Others notice a dead node with short leases within 3 s. The rest is a margin for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(6);

/// The checks of `windlass fleet doctor`, in their order.
const CHECKS: [&str; 7] = ["store", "lease", "certificate", "nodes", "versions", "clocks", "room"];

/// The JSON that a command prints, and its exit code.
async fn json_of(node: &TestNode, args: &[&str]) -> (Value, Option<i32>) {
    let said = command(node, args).await;
    let value = serde_json::from_slice(&said.stdout);
    (value.unwrap_or_else(|error| panic!("{args:?}: {error}: {said:?}")), said.status.code())
}

/// A field of each element of a list.
fn all<'a>(list: &'a Value, field: &str) -> Vec<&'a Value> {
    list.as_array().unwrap().iter().map(|one| &one[field]).collect()
}

/// The result of a check of `windlass fleet doctor`.
fn check<'a>(checks: &'a Value, name: &str) -> &'a Value {
    let found = checks.as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {checks}"))
}

/// Session, node and state of each line of `windlass ps --fleet`.
async fn listed_by(node: &TestNode) -> Value {
    let (list, code) = json_of(node, &["ps", "--fleet", "--json"]).await;
    assert_eq!(code, Some(0));
    let sessions = list["sessions"].as_array().unwrap().iter();
    sessions.map(|one| json!([one["id"], one["node"], one["state"]])).collect()
}

async fn tells_all_nodes(node: &TestNode, name: &str) {
    // A node that answers slowly for a moment is told without its load.
    let list = eventually(NOTICED_WITHIN, async || {
        let (list, code) = json_of(node, &["fleet", "nodes", "--json"]).await;
        assert_eq!(code, Some(0), "{list}");
        let is_silent = all(&list["nodes"], "load").iter().any(|load| load.is_null());
        if is_silent { Err(list) } else { Ok(list) }
    });
    let list = list.await;
    let nodes = &list["nodes"];
    assert_eq!(all(nodes, "node"), ["n1", "n2"]);
    assert_eq!(all(nodes, "status"), ["alive", "alive"]);
    for node in nodes.as_array().unwrap() {
        let is_self = node["node"] == name;
        assert_eq!(node["is_self"].as_bool().unwrap_or(false), is_self, "{node}");
        let load = &node["load"];
        assert_eq!((&load["node"], &load["standing"]), (&node["node"], &json!("serving")));
        let live = if node["node"] == "n1" { 2 } else { 1 };
        assert_eq!(load["sessions"]["live"], live, "{node}");
        assert!(load["sessions"]["max"].as_u64() > Some(live), "{node}");
        let memory = &load["memory"];
        assert!(memory["available_bytes"].as_u64() > memory["reserve_bytes"].as_u64(), "{node}");
        assert!(load["processors"]["count"].as_u64() >= Some(1), "{node}");
    }
    let status = eventually(NOTICED_WITHIN, async || {
        let (status, code) = json_of(node, &["fleet", "status", "--json"]).await;
        assert_eq!(code, Some(0), "{status}");
        if status["nodes"]["silent"] == 0 { Ok(status) } else { Err(status) }
    });
    let status = status.await;
    assert_eq!((&status["node"], &status["standing"]), (&json!(name), &json!("serving")));
    assert_eq!((&status["cordoned"], &status["sessions"]), (&json!(false), &json!(3)));
    assert_eq!(
        (&status["lease_close_ms"], &status["lease_fence_ms"]),
        (&json!(2200), &json!(7350))
    );
    assert_eq!(status["store"]["reachable"], true, "{status}");
    assert_eq!(status["nodes"], json!({"alive": 2, "unreachable": 0, "lost": 0, "silent": 0}));
    let checks = eventually(NOTICED_WITHIN, async || {
        let (checks, code) = json_of(node, &["fleet", "doctor", "--json"]).await;
        if code == Some(0) { Ok(checks) } else { Err(checks) }
    });
    let checks = checks.await;
    assert_eq!(all(&checks, "name"), CHECKS);
    assert!(all(&checks, "result").iter().all(|result| **result != "bad"), "{checks}");
}

/// The second node is dead, and the first one has noticed it.
async fn tells_the_dead_node(node: &TestNode) {
    let (list, code) = json_of(node, &["fleet", "nodes", "--json"]).await;
    assert_eq!((code, all(&list["nodes"], "node").len()), (Some(0), 2), "{list}");
    assert_eq!(all(&list["nodes"], "status"), ["alive", "unreachable"]);
    assert_eq!(list["nodes"][1]["load"], Value::Null, "{list}");
    let (status, code) = json_of(node, &["fleet", "status", "--json"]).await;
    assert_eq!(code, Some(0), "this node serves: {status}");
    assert_eq!(status["nodes"], json!({"alive": 1, "unreachable": 1, "lost": 0, "silent": 0}));
    assert_eq!(status["sessions"], 2, "{status}");
    let (checks, code) = json_of(node, &["fleet", "doctor", "--json"]).await;
    assert_eq!(code, Some(1), "{checks}");
    let nodes = check(&checks, "nodes");
    assert_eq!(nodes["result"], "bad", "{nodes}");
    assert!(nodes["says"].as_str().unwrap_or_default().contains("n2"), "{nodes}");
    assert!(!nodes["help"].as_str().unwrap_or_default().is_empty(), "{nodes}");
    assert_eq!(check(&checks, "lease")["result"], "good", "{checks}");
}

#[tokio::test]
async fn contract_103_commands_tell_nodes_and_sessions_also_of_a_dead_node() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    for (client, name) in [(0, "a"), (0, "b"), (1, "c")] {
        let session = create(&clients[client], name).await;
        run_ok(&clients[client], &session, "1").await;
    }
    let of_first = [json!(["a", "n1", "idle"]), json!(["b", "n1", "idle"])];
    for (node, name) in fleet.nodes().iter().zip(["n1", "n2"]) {
        tells_all_nodes(node, name).await;
        let [a, b] = &of_first;
        assert_eq!(listed_by(node).await, json!([a, b, ["c", "n2", "idle"]]));
        let (list, _) = json_of(node, &["ps", "--fleet", "--node", "n2", "--json"]).await;
        assert_eq!(all(&list["sessions"], "id"), ["c"]);
        let (list, _) = json_of(node, &["ps", "--json"]).await;
        let own = if name == "n1" { 2 } else { 1 };
        assert_eq!(list["sessions"].as_array().map(Vec::len), Some(own), "{list}");
    }
    fleet.kill9(1);
    let first = fleet.node(0);
    eventually(NOTICED_WITHIN, async || {
        let nodes = clients[0].fleet_status().await.unwrap().nodes;
        if nodes.unreachable == 1 { Ok(()) } else { Err(nodes) }
    })
    .await;
    tells_the_dead_node(first).await;
    let [a, b] = &of_first;
    assert_eq!(listed_by(first).await, json!([a, b, ["c", "n2", "unreachable"]]));
    // Without a node, a command says so and starts none.
    let (list, code) = json_of(fleet.node(1), &["fleet", "nodes", "--json"]).await;
    assert_eq!((list, code), (Value::Null, Some(3)));
}
