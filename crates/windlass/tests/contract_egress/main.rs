//! Contract line 52, network with a list of hosts: code reaches only those hosts, by name and through the
//! proxy, whatever it sends or forges. Each refused attempt is also checked at the host where it would
//! arrive.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod host;
mod inside;
mod packages;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use windlass_client::protocol::api::{CloseQuery, EgressDecision, EgressLog};
use windlass_client::protocol::policy::Network;
use windlass_client::protocol::{EventKind, Seq};
use windlass_testkit::{PATIENCE, TestNode, wait_for_event, within};

use crate::host::{Host, Manner, REACHED, WORDS};
use crate::inside::{Inside, rules};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A way to reach a host by name: the function's name, and its result for a host that no rule names.
const BY_NAME: [(&str, &str); 4] = [
    ("by_urllib", "403 Refused by policy.network.hosts: no rule names it"),
    ("by_tunnel_of_the_library", "403 Refused by policy.network.hosts: no rule names it"),
    ("by_connect", "403 Refused by policy.network.hosts: no rule names it"),
    ("by_socks", "reply 2"),
];

#[tokio::test]
async fn contract_52_with_a_host_list_only_those_hosts_are_reached_by_every_way() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (listed, other) = (Host::new(Manner::Web).await, Host::new(Manner::Web).await);
    let (port, other_port) = (listed.port(), other.port());
    let network = [
        format!("index.test:{port}=127.0.0.1"),
        format!("*.wheels.test:{port}=127.0.0.1"),
        format!("elsewhere.test:{other_port}=127.0.0.1"),
    ];
    let inside = Inside::new(&node, rules(&network)).await;
    let mut reached = 0;
    for (way, refusal) in BY_NAME {
        for name in ["index.test", "INDEX.test", "index.test.", "a.b.wheels.test"] {
            assert_eq!(inside.ask(way, name, port).await, REACHED, "{way} {name}");
            reached += 1;
        }
        for (name, port) in [
            ("other.test", port),
            ("wheels.test", port),
            ("index.test.other.test", port),
            ("other-index.test", port),
            ("index.test", other_port),
            ("elsewhere.test", port),
        ] {
            assert_eq!(inside.ask(way, name, port).await, refusal, "{way} {name}:{port}");
        }
    }
    // No connection arrived at all: these are the next ones.
    assert_eq!(inside.ask("by_connect", "index.test", port).await, REACHED);
    assert_eq!(inside.ask("by_connect", "elsewhere.test", other_port).await, REACHED);
    assert_eq!((listed.connections(), other.connections()), (reached + 1, 1));
    assert!(!listed.heard().contains("other"), "{}", listed.heard());
}

#[tokio::test]
async fn contract_52_no_spelling_of_an_address_stands_for_a_host_of_the_list() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let host = Host::new(Manner::Web).await;
    let port = host.port();
    let inside = Inside::new(&node, rules(&[format!("index.test:{port}=127.0.0.1")])).await;
    let refusal = "403 Refused by policy.network.hosts: an address is reached only by a rule that \
                   names it";
    for literal in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:0:0:1]",
    ] {
        for (way, refusal) in
            [("by_whole_uri", refusal), ("by_connect", refusal), ("by_socks", "reply 2")]
        {
            assert_eq!(inside.ask(way, literal, port).await, refusal, "{way} {literal}");
        }
    }
    for packed in ["127.0.0.1", "0.0.0.0"] {
        let code = format!("by_socks(socket.inet_aton({packed:?}), {port})");
        assert_eq!(inside.says(&code).await, "reply 2", "{packed}");
    }
    for packed in ["::1", "::ffff:127.0.0.1"] {
        let code = format!("by_socks(socket.inet_pton(socket.AF_INET6, {packed:?}), {port})");
        assert_eq!(inside.says(&code).await, "reply 2", "{packed}");
    }
    // The machine's own name is not in the list either.
    assert!(inside.ask("by_connect", "localhost", port).await.starts_with("403 "));
    // The allowed request that follows is the first one that the host sees.
    assert_eq!(inside.ask("by_whole_uri", "index.test", port).await, REACHED);
    assert_eq!(host.connections(), 1);
}

#[tokio::test]
async fn contract_52_a_forged_host_header_reaches_no_other_host() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let host = Host::new(Manner::Web).await;
    let port = host.port();
    let inside = Inside::new(&node, rules(&[format!("index.test:{port}=127.0.0.1")])).await;
    for (way, opened_by) in [("by_connect", "connect"), ("by_socks", "socks")] {
        for headers in [
            vec![format!("Host: other.test:{port}")],
            vec!["Host: other.test".to_owned()],
            vec![format!("hOST:\tother.test:{port}")],
            vec![format!("Host: index.test:{port}"), format!("Host: other.test:{port}")],
            vec![format!("Host: other.test@index.test:{port}")],
            vec![format!("Host: 127.0.0.1:{port}")],
        ] {
            let asked = format!("{way}('index.test', {port}, {headers:?})");
            let said = inside.says(&asked).await;
            assert!(said.starts_with("403 ") || said.starts_with("400 "), "{asked}: {said}");
        }
        let asked = format!("{way}('index.test', {port}, ['Host: other.test'])");
        let refusal = "403 Refused by policy.network.hosts: the HTTP request asks for a host that \
                       is not allowed";
        assert_eq!(inside.says(&asked).await, refusal);
        // A second request on the connection is checked like the first.
        let twice = format!(
            "(tunnel := {opened_by}('index.test', {port})) and \
             ask(tunnel, 'index.test', {port}) + ', ' + ask(tunnel, 'other.test', {port})"
        );
        assert_eq!(inside.says(&twice).await, format!("{REACHED}, {refusal}"), "{way}");
    }
    assert_eq!(host.heard().matches("get / ").count(), 2, "{}", host.heard());
    // If the URI names a host, the request goes to the host of the URI.
    let asked = format!("by_whole_uri('index.test', {port}, ['Host: other.test'])");
    assert_eq!(inside.says(&asked).await, REACHED);
    let heard = host.heard();
    assert_eq!(heard.matches(&format!("host: index.test:{port}\r\n")).count(), 3, "{heard}");
    assert!(!heard.contains("other.test"), "{heard}");
}

#[tokio::test]
async fn contract_52_a_forged_server_name_reaches_no_other_host() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let host = Host::new(Manner::Echo).await;
    let port = host.port();
    let network = ["index.test", "second.test"].map(|name| format!("{name}:{port}=127.0.0.1"));
    let inside = Inside::new(&node, rules(&network)).await;
    let ways = ["connect", "socks"]
        .into_iter()
        .flat_map(|opened_by| ["whole", "late", "in_two_records"].map(|sent| (opened_by, sent)));
    let greet = async |(opened_by, sent): (&str, &str), name: &str| {
        let hello = format!("{sent}(hello({name:?}))");
        inside.says(&format!("greet({opened_by}, 'index.test', {port}, {hello})")).await
    };
    for way in ways.clone() {
        for name in ["other.test", "index.test.other.test", "xindex.test"] {
            assert_eq!(greet(way, name).await, "closed after 0 bytes", "{way:?} {name}");
        }
    }
    let mut passed_bytes = 0;
    for way in ways {
        for name in ["index.test", "second.test"] {
            let said = greet(way, name).await;
            let passed = said.strip_prefix("passed ").map(|bytes| bytes.parse::<u64>().unwrap());
            passed_bytes += passed.unwrap_or_else(|| panic!("{way:?} {name}: {said}"));
        }
    }
    assert_eq!(host.heard_bytes(), passed_bytes, "not a byte of the others arrived");
    let refusals = inside.refusals().await;
    let reason = "the TLS hello asks for a name that is not allowed";
    assert!(refusals.contains(&("other.test".into(), port, reason.into())), "{refusals:?}");
}

/// The address of this machine in its network, if it has one.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // Sends nothing: connecting a datagram socket only selects the local address for an example destination.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().unwrap().ip())
}

#[tokio::test]
async fn contract_52_with_a_host_list_sockets_without_the_proxy_reach_nothing() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let mut hosts = vec![Host::new(Manner::Web).await];
    match outward_address() {
        Some(address) => hosts.push(Host::at(address, Manner::Web).await),
        None => eprintln!("not tried: this machine has no address but loopback"),
    }
    let network: Vec<_> = hosts
        .iter()
        .map(|host| format!("index.test:{}={}", host.port(), host.address.ip()))
        .collect();
    let listed = Inside::new(&node, rules(&network)).await;
    let open = Inside::new(&node, Network::Open).await;
    for host in &hosts {
        let (place, port) = (host.address.ip().to_string(), host.port());
        for name in [&place, "index.test"] {
            let said = listed.ask("directly", name, port).await;
            assert!(said.starts_with("no way: "), "{name}: {said}");
        }
        assert_eq!(listed.ask("by_connect", "index.test", port).await, REACHED);
        assert_eq!(host.connections(), 1, "by the proxy only");
        // The same code succeeds without a restriction.
        assert_eq!(open.ask("directly", &place, port).await, REACHED);

        let receiver = UdpSocket::bind((host.address.ip(), 0)).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let datagrams = receiver.local_addr().unwrap();
        // Whether the send succeeds or not, the packet must not arrive: the next packet is the first one that
        // does.
        listed.ask("by_datagram", &place, datagrams.port()).await;
        receiver.send_to(b"from the test", datagrams).unwrap();
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"from the test");
        assert_eq!(open.ask("by_datagram", &place, datagrams.port()).await, "sent");
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"from inside");
    }
}

#[tokio::test]
async fn contract_52_every_decision_is_counted_and_reported() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let host = Host::new(Manner::Web).await;
    let port = host.port();
    let inside = Inside::new(&node, rules(&[format!("index.test:{port}=127.0.0.1")])).await;
    for _ in 0..3 {
        assert_eq!(inside.ask("by_urllib", "index.test", port).await, REACHED);
    }
    inside.ask("by_socks", "other.test", 443).await;

    let log = inside.client.egress(&inside.session).await.unwrap();
    let [refused, allowed] = &log.decisions[..] else { panic!("{log:?}") };
    assert_eq!((&*refused.host, refused.port, refused.allowed), ("other.test", 443, false));
    assert_eq!((&*refused.reason, refused.count), ("no rule names it", 1));
    assert_eq!((refused.sent_bytes, refused.received_bytes), (0, 0));
    assert_eq!((&*allowed.host, allowed.port, allowed.allowed), ("index.test", port, true));
    assert_eq!((&*allowed.reason, allowed.count), ("", 3));
    assert_eq!(allowed.sent_bytes, host.heard_bytes());
    assert!(allowed.received_bytes > 3 * WORDS.len() as u64, "{allowed:?}");

    let mut after = Seq(0);
    for (wanted_host, wanted) in [("index.test", true), ("other.test", false)] {
        let event = wait_for_event(&inside.client, &inside.session, after, PATIENCE, |item| {
            matches!(item.event.kind, EventKind::Egress { .. })
        });
        let event = event.await.unwrap().event;
        let EventKind::Egress { host, allowed, .. } = event.kind else { unreachable!() };
        assert_eq!((&*host, allowed), (wanted_host, wanted), "the first of each kind, once");
        assert!(event.turn.is_some(), "it says which turn it was");
        after = event.seq;
    }

    // The decisions of an ended session can still be read, from its journal.
    inside.client.close_session(&inside.session, CloseQuery::default()).await.unwrap();
    let from_journal = async {
        loop {
            // A session is listed as live until its end is written.
            let log = inside.client.egress(&inside.session).await.unwrap();
            if log.from_journal {
                break log;
            }
        }
    };
    let ended = within(PATIENCE, from_journal).await;
    assert!(ended.from_journal && !log.from_journal, "{ended:?}");
    let kinds = |log: &EgressLog| -> Vec<_> {
        let one = |d: &EgressDecision| (d.host.clone(), d.port, d.allowed, d.reason.clone());
        log.decisions.iter().map(one).collect()
    };
    assert_eq!(kinds(&ended), kinds(&log));
    assert!(ended.decisions.iter().all(|d| d.count == 0 && d.last_at_ms >= ended.since_ms));
}

#[tokio::test]
async fn contract_52_a_host_list_outlives_the_node() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let (host, echo) = (Host::new(Manner::Web).await, Host::new(Manner::Echo).await);
    let port = host.port();
    let network = [port, echo.port()].map(|port| format!("index.test:{port}=127.0.0.1"));
    let mut inside = Inside::new(&node, rules(&network)).await;
    assert_eq!(inside.ask("by_urllib", "index.test", port).await, REACHED);
    let kept = format!("(kept := connect('index.test', {})).fileno() > 0", echo.port());
    assert_eq!(inside.says(&kept).await, "True");
    let before = inside.client.egress(&inside.session).await.unwrap();

    node.kill9();
    node.restart().await.unwrap();
    inside.client = node.client().await.unwrap();
    assert_eq!(inside.says("kept.recv(1)").await, "b''", "what was open is closed");
    for (way, refusal) in BY_NAME {
        assert_eq!(inside.ask(way, "other.test", port).await, refusal, "{way}");
    }
    assert!(inside.ask("directly", "127.0.0.1", port).await.starts_with("no way: "));
    assert_eq!(inside.ask("by_urllib", "index.test", port).await, REACHED);
    assert_eq!(host.connections(), 2);
    let after = inside.client.egress(&inside.session).await.unwrap();
    assert!(after.since_ms > before.since_ms, "it counts anew, and says since when");
    assert_eq!(inside.refusals().await.len(), 1);
}
