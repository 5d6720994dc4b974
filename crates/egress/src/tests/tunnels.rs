//! What passes through a tunnel and what does not: TLS for another name, and protocols in which the
//! host sends first.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::clients::{by_name, socks};
use super::world::{Client, Host, Manner, World, within};
use crate::hello::fixtures::{hello, message, record, server_name};
use crate::meter::Metered;
use crate::reach::{AddressSource, Upstream};
use crate::tunnel;

const RULES: [&str; 2] = ["a.org=127.0.0.1", "b.org:{}=127.0.0.1"];

/// The same tunnel, opened by CONNECT and by SOCKS.
async fn tunnels(world: &World, name: &str, port: u16) -> [Client; 2] {
    let (by_socks, reply) = socks(world, 1, &by_name(name), port).await;
    assert_eq!(reply, 0);
    [world.tunnel(&format!("{name}:{port}")).await, by_socks]
}

#[tokio::test]
async fn a_hello_for_the_tunnel_s_host_or_another_allowed_one_passes_unchanged() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&RULES, &host).await;
    for name in ["a.org", "A.ORG", "b.org"] {
        for mut client in tunnels(&world, "a.org", host.port()).await {
            let bytes = [hello(name), b"more".to_vec()].concat();
            client.say(&bytes).await;
            assert_eq!(client.hear(bytes.len()).await, bytes, "{name}");
        }
    }
    for mut client in tunnels(&world, "a.org", host.port()).await {
        let unnamed = record(&message(&[]));
        client.say(&unnamed).await;
        assert_eq!(client.hear(unnamed.len()).await, unnamed);
    }
    assert_eq!(world.refusals(), []);
}

#[tokio::test]
async fn a_hello_for_another_host_never_arrives() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&RULES, &host).await;
    let twice = [server_name(&[(0, "a.org")]), server_name(&[(0, "evil.org")])];
    for bytes in [
        hello("evil.org"),
        hello("a.org.evil.org"),
        record(&message(&twice)),
        message(&[server_name(&[(0, "evil.org")])]).chunks(7).flat_map(record).collect(),
    ] {
        for mut client in tunnels(&world, "a.org", host.port()).await {
            client.say(&bytes).await;
            assert_eq!(client.rest().await, b"");
        }
    }
    assert_eq!(host.heard(), "");
    let refusals = world.refusals();
    assert!(refusals.iter().any(|(host, why)| host == "evil.org" && why.contains("TLS")));
}

#[tokio::test]
async fn a_hello_that_comes_byte_by_byte_is_held_until_it_is_whole() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&RULES, &host).await;
    for (name, arrives) in [("a.org", true), ("evil.org", false)] {
        let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
        client.0.set_nodelay(true).unwrap();
        let bytes = hello(name);
        for byte in &bytes {
            client.say(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        match arrives {
            true => assert_eq!(client.hear(bytes.len()).await, bytes),
            false => assert_eq!(client.rest().await, b""),
        }
    }
    assert_eq!(host.heard().matches("evil").count(), 0);
}

#[tokio::test]
async fn a_host_that_speaks_first_is_heard_at_once() {
    let host = Host::new(Manner::SpeakFirst("220 ready\r\n")).await;
    let world = World::new(&RULES, &host).await;
    for mut client in tunnels(&world, "a.org", host.port()).await {
        assert_eq!(client.hear(11).await, b"220 ready\r\n");
        client.say(b"EHLO me\r\n").await;
        assert_eq!(client.hear(9).await, b"EHLO me\r\n");
    }
}

#[tokio::test]
async fn a_client_that_has_said_all_still_hears_the_answer() {
    use tokio::io::AsyncWriteExt;
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&RULES, &host).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    client.say(b"half a line").await;
    client.0.shutdown().await.unwrap();
    assert_eq!(client.rest().await, b"half a line");
}

#[tokio::test]
async fn plain_http_2_passes_only_to_a_host_whose_rule_names_its_address() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&RULES, &host).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    client.say(preface).await;
    assert_eq!(client.hear(preface.len()).await, preface);
    // The same host, as if its address came from DNS.
    let stream = TcpStream::connect(host.address).await.unwrap();
    let stream = Metered::new(stream, Arc::default());
    let (host_name, source) = ("a.org".to_owned(), AddressSource::Dns);
    let upstream = Upstream { host: host_name, port: host.port(), source, stream };
    let (mut near, far) = tokio::io::duplex(1024);
    near.write_all(preface).await.unwrap();
    within(tunnel::run(far, upstream, &world.egress)).await;
    assert_eq!(host.heard().matches("PRI").count(), 1, "the second never arrived");
    assert!(world.refusals().iter().any(|(_, why)| why.contains("HTTP/2")));
}
