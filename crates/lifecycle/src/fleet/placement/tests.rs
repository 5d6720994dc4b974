//! Tables of placements, and what holds for any load.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use windlass_protocol::fleet_view::{
    MemoryCapacity, NODE_LOAD, ProcessorCapacity, ReadyWorkers, SessionCapacity,
};

use super::*;

const GIB: u64 = 1 << 30;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

/// A node with 4 processors, of 16 GiB so many free, so many sessions.
fn load(node: &str, free_bytes: u64, sessions: u64) -> NodeLoad {
    NodeLoad {
        version: NODE_LOAD,
        node: name(node),
        release: "1.0.0".to_owned(),
        at_ms: 0,
        standing: NodeStanding::Serving,
        cordoned: false,
        labels: BTreeMap::new(),
        sessions: SessionCapacity { live: sessions, max: 1_000 },
        memory: MemoryCapacity {
            total_bytes: 16 * GIB,
            available_bytes: 2 * GIB + free_bytes,
            reserve_bytes: 2 * GIB,
        },
        processors: ProcessorCapacity { count: 4, load_hundredths: 0 },
        ready: Vec::new(),
    }
}

fn zone(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("zone".to_owned(), value.to_owned())])
}

fn asked(loads: &[NodeLoad]) -> Vec<AskedNode> {
    loads
        .iter()
        .map(|load| AskedNode { node: load.node.clone(), load: Some(load.clone()) })
        .collect()
}

/// The own node is n1. Each node that is tried refuses, so the text has the whole order.
fn order(mut placement: Placement) -> String {
    let mut text = String::new();
    while let Some(node) = placement.try_best() {
        text += &format!("try {node}\n");
    }
    for (node, why) in placement.refusals() {
        text += &format!("{node} {why}\n");
    }
    text
}

fn check(labels: &BTreeMap<String, String>, asked: Vec<AskedNode>, expected: Expect) {
    let wish = PlacementWish { kind: "python", labels };
    expected.assert_eq(&order(Placement::of(wish, &name("n1"), asked)));
}

#[test]
fn the_own_node_wins_unless_another_one_is_clearly_better() {
    let none = BTreeMap::new();
    let equal = [load("n2", 8 * GIB, 0), load("n1", 8 * GIB, 0)];
    check(
        &none,
        asked(&equal),
        expect![[r#"
        try n1
        try n2
    "#]],
    );
    let a_little_better = [load("n2", 10 * GIB, 0), load("n1", 8 * GIB, 0)];
    check(
        &none,
        asked(&a_little_better),
        expect![[r#"
        try n1
        try n2
    "#]],
    );
    let clearly_better = [load("n1", 2 * GIB, 0), load("n2", 10 * GIB, 0), load("n3", 8 * GIB, 0)];
    check(
        &none,
        asked(&clearly_better),
        expect![[r#"
        try n2
        try n3
        try n1
    "#]],
    );
}

#[test]
fn sessions_busy_processors_and_ready_workers_count() {
    let none = BTreeMap::new();
    let mut busy = load("n2", 8 * GIB, 0);
    busy.processors.load_hundredths = 800;
    let mut ready = load("n4", 8 * GIB, 0);
    ready.ready = vec![ReadyWorkers {
        worker: "python".to_owned(),
        interpreter: "python3".to_owned(),
        ready: 1,
    }];
    let loads = [busy, load("n3", 8 * GIB, 64), ready, load("n5", 8 * GIB, 0)];
    check(
        &none,
        asked(&loads),
        expect![[r#"
        try n4
        try n5
        try n3
        try n2
    "#]],
    );
}

#[test]
fn a_node_without_room_says_why() {
    let mut cordoned = load("n1", 8 * GIB, 0);
    cordoned.cordoned = true;
    let mut closed = load("n2", 8 * GIB, 0);
    closed.standing = NodeStanding::Closed;
    let mut all = asked(&[cordoned, closed, load("n3", 0, 0), load("n4", GIB, 1_000)]);
    all.push(AskedNode { node: name("n5"), load: None });
    check(
        &BTreeMap::new(),
        all,
        expect![[r#"
        n1 is cordoned
        n2 takes no sessions, its standing is closed
        n3 has 2048 MiB of memory left and keeps 2048 MiB in reserve
        n4 has 1000 sessions of at most 1000
        n5 did not answer in time
    "#]],
    );
}

#[test]
fn only_nodes_with_all_labels_are_tried() {
    let mut other = load("n2", GIB, 0);
    other.labels = zone("b");
    let mut right = load("n3", GIB, 0);
    right.labels = zone("a");
    right.labels.insert("gpu".to_owned(), "yes".to_owned());
    check(
        &zone("a"),
        asked(&[load("n1", 8 * GIB, 0), other, right]),
        expect![[r#"
        try n3
        n1 has other labels
        n2 has other labels
    "#]],
    );
}

#[test]
fn a_refusal_is_kept_with_its_message() {
    let labels = BTreeMap::new();
    let wish = PlacementWish { kind: "python", labels: &labels };
    let mut placement = Placement::of(wish, &name("n1"), asked(&[load("n2", GIB, 0)]));
    let tried = placement.try_best().unwrap();
    placement.refused(tried, "no more processes".to_owned());
    assert_eq!(placement.try_best(), None);
    let (node, why) = &placement.refusals()[0];
    assert_eq!(format!("{node} {why}"), "n2 refused: no more processes");
}

fn any_load() -> impl Strategy<Value = NodeLoad> {
    let standing = prop_oneof![
        4 => Just(NodeStanding::Serving),
        1 => Just(NodeStanding::Joining),
        1 => Just(NodeStanding::Closed),
        1 => Just(NodeStanding::Fenced),
    ];
    let sessions = (any::<u64>(), any::<u64>());
    let sessions = sessions.prop_map(|(live, max)| SessionCapacity { live, max });
    let memory = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(total_bytes, available_bytes, reserve_bytes)| MemoryCapacity {
            total_bytes,
            available_bytes,
            reserve_bytes,
        },
    );
    let processors = (any::<u64>(), any::<u64>());
    let processors = processors
        .prop_map(|(count, load_hundredths)| ProcessorCapacity { count, load_hundredths });
    let labels = prop_oneof![Just(BTreeMap::new()), Just(zone("a")), Just(zone("b"))];
    (standing, any::<bool>(), labels, sessions, memory, processors).prop_map(
        |(standing, cordoned, labels, sessions, memory, processors)| NodeLoad {
            standing,
            cordoned,
            labels,
            sessions,
            memory,
            processors,
            ..load("n1", 0, 0)
        },
    )
}

proptest! {
    #[test]
    fn each_node_is_tried_once_or_has_a_reason_and_none_without_room_is_tried(
        loads in proptest::collection::vec(proptest::option::of(any_load()), 0..8),
        wants_zone in any::<bool>(),
    ) {
        let labels = if wants_zone { zone("a") } else { BTreeMap::new() };
        let all: Vec<AskedNode> = loads
            .into_iter()
            .enumerate()
            .map(|(number, load)| AskedNode { node: name(&format!("n{number}")), load })
            .collect();
        let wish = PlacementWish { kind: "python", labels: &labels };
        let mut placement = Placement::of(wish, &name("n1"), all.clone());
        let mut seen = Vec::new();
        while let Some(node) = placement.try_best() {
            let one = all.iter().find(|one| one.node == node).expect("a node that was asked");
            let load = one.load.as_ref().expect("a node that answered");
            prop_assert!(!load.cordoned && load.standing == NodeStanding::Serving);
            prop_assert!(load.sessions.live < load.sessions.max && load.memory.free_bytes() > 0);
            prop_assert!(load.has_labels(&labels));
            placement.refused(node.clone(), "no".to_owned());
            seen.push(node);
        }
        let refused: Vec<_> = placement.refusals().iter().map(|(node, _)| node.clone()).collect();
        prop_assert!(seen.iter().all(|node| refused.contains(node)));
        let mut refused = refused;
        refused.sort();
        let mut names: Vec<_> = all.iter().map(|one| one.node.clone()).collect();
        names.sort();
        prop_assert_eq!(refused, names);
    }
}
