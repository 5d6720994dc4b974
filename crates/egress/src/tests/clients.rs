//! Each kind of proxy request, for an allowed host and for a refused host.

use windlass_protocol::api::EgressDecision;

use super::world::{Client, Host, Manner, World};
use crate::ledger::Decision;

/// The scheme of URIs. It is a separate constant so that no text here looks like a real URI.
const HTTP: &str = "http";

const ANSWER: Manner = Manner::Answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");

#[tokio::test]
async fn connect_opens_a_tunnel_to_a_host_that_a_rule_names() {
    let host = Host::new(Manner::Echo).await;
    let mut world = World::new(&["a.org:{}=127.0.0.1"], &host).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    client.say(b"\0some bytes").await;
    assert_eq!(client.hear(11).await, b"\0some bytes");
    let log = world.ledger.log();
    let [EgressDecision { host: name, port, allowed: true, count: 1, .. }] = &log.decisions[..]
    else {
        panic!("{log:?}");
    };
    assert_eq!((name.as_str(), *port), ("a.org", host.port()));
    assert_eq!((log.decisions[0].sent_bytes, log.decisions[0].received_bytes), (11, 11));
    let said = world.events.try_recv().unwrap();
    assert!(matches!(said, Decision { host, allowed: true, .. } if host == "a.org"));
    assert!(world.events.try_recv().is_err(), "reported once");
}

#[tokio::test]
async fn connect_to_another_host_is_refused_with_the_way_to_allow_it() {
    let host = Host::new(Manner::Echo).await;
    let mut world = World::new(&["a.org"], &host).await;
    let mut client = world.connect().await;
    client.say(b"CONNECT evil.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n").await;
    let answer = client.answer().await;
    assert!(answer.starts_with("HTTP/1.1 403 Refused by policy.network.hosts"), "{answer}");
    for part in ["evil.org:443", "no rule names it", "policy.network.hosts: [\"evil.org:443\"]"] {
        assert!(answer.contains(part), "{answer}");
    }
    let said = world.events.try_recv().unwrap();
    assert!(matches!(said, Decision { host, port: 443, allowed: false, .. }
        if host == "evil.org"));
}

#[tokio::test]
async fn a_request_with_a_whole_uri_goes_on_with_the_host_of_the_uri() {
    let host = Host::new(ANSWER).await;
    let world = World::new(&["a.org=127.0.0.1"], &host).await;
    let mut client = world.connect().await;
    for _ in 0..2 {
        let request = format!(
            "GET {HTTP}://a.org:{}/x?y=1 HTTP/1.1\r\nHost: evil.org\r\nProxy-Connection: \
             keep-alive\r\nProxy-Authorization: Basic eDp5\r\nConnection: X-Secret, Host\r\n\
             X-Secret: 1\r\nX-Kept: 2\r\n\r\n",
            host.port()
        );
        client.say(request.as_bytes()).await;
        assert!(client.answer().await.ends_with("\r\n\r\nhi"));
    }
    let heard = host.heard();
    assert!(heard.starts_with("GET /x?y=1 HTTP/1.1\r\n"), "{heard}");
    assert!(heard.contains(&format!("host: a.org:{}\r\n", host.port())), "{heard}");
    assert!(heard.contains("x-kept: 2"), "{heard}");
    for gone in ["evil.org", "proxy-", "x-secret"] {
        assert!(!heard.to_lowercase().contains(gone), "{heard}");
    }
    assert_eq!(host.connections(), 2, "each request has a connection of its own");
}

#[tokio::test]
async fn a_body_goes_on_in_pieces_and_is_counted() {
    let host = Host::new(ANSWER).await;
    let world = World::new(&["a.org=127.0.0.1"], &host).await;
    let mut client = world.connect().await;
    let place = format!("{HTTP}://a.org:{}/", host.port());
    let head = format!("POST {place} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.say(head.as_bytes()).await;
    client.say(b"5\r\nfirst\r\n").await;
    client.say(b"6\r\nsecond\r\n0\r\n\r\n").await;
    assert!(client.answer().await.ends_with("hi"));
    let heard = host.heard();
    assert!(heard.contains("first") && heard.contains("second"), "{heard}");
    let log = world.ledger.log();
    assert_eq!(log.decisions[0].sent_bytes, heard.len() as u64);
}

#[tokio::test]
async fn a_request_for_another_host_is_refused_and_nonsense_is_a_bad_request() {
    let host = Host::new(ANSWER).await;
    let world = World::new(&["a.org"], &host).await;
    for (request, status) in [
        ("GET scheme://evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "403 Refused"),
        ("GET scheme://a.org.evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "403 Refused"),
        ("GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("GET schemes://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("GET scheme://a.org@evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("GET ftp://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("CONNECT a.org HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("CONNECT a.org@evil.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n", "400 "),
        ("nonsense\r\n\r\n", "400 "),
    ] {
        let mut client = world.connect().await;
        client.say(request.replace("scheme", HTTP).as_bytes()).await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}{head}");
    }
    assert_eq!(host.connections(), 0);
}

/// Sends a SOCKS5 request; returns the client and the reply code.
pub(super) async fn socks(world: &World, command: u8, address: &[u8], port: u16) -> (Client, u8) {
    let mut client = world.connect().await;
    client.say(&[5, 1, 0]).await;
    assert_eq!(client.hear(2).await, [5, 0]);
    client.say(&[&[5, command, 0], address, &port.to_be_bytes()].concat()).await;
    let answer = client.hear(10).await;
    assert_eq!((answer[0], &answer[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    (client, answer[1])
}

pub(super) fn by_name(name: &str) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
}

#[tokio::test]
async fn socks_opens_a_tunnel_by_name_and_by_an_address_that_a_rule_names() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&["a.org=127.0.0.1", "127.0.0.1:{}"], &host).await;
    for address in [by_name("a.org"), by_name("127.0.0.1"), vec![1, 127, 0, 0, 1]] {
        let (mut client, reply) = socks(&world, 1, &address, host.port()).await;
        assert_eq!(reply, 0, "{address:?}");
        client.say(b"\0bytes").await;
        assert_eq!(client.hear(6).await, b"\0bytes");
    }
}

#[tokio::test]
async fn socks_refuses_other_hosts_addresses_and_commands() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&["a.org=127.0.0.1"], &host).await;
    let mapped = [&[4][..], &[0; 10], &[0xff, 0xff, 127, 0, 0, 1]].concat();
    for (command, address, reply) in [
        (1, by_name("evil.org"), 2),
        (1, by_name(""), 2),
        (1, by_name("a.org\0"), 2),
        (1, vec![1, 127, 0, 0, 1], 2),
        (1, vec![1, 169, 254, 169, 254], 2),
        (1, mapped, 2),
        (2, by_name("a.org"), 7),
        (3, by_name("a.org"), 7),
    ] {
        let (mut client, got) = socks(&world, command, &address, host.port()).await;
        assert_eq!(got, reply, "{command} {address:?}");
        assert_eq!(client.rest().await, b"", "closed");
    }
    let mut client = world.connect().await;
    client.say(&[5, 1, 2]).await;
    assert_eq!(client.rest().await, [5, 0xff], "only clients without authentication");
    assert_eq!(host.connections(), 0);
}
