//! Addresses in every spelling, and names that resolve to forbidden addresses.

use super::clients::{by_name, socks};
use super::world::{Host, Manner, World};

#[tokio::test]
async fn no_spelling_of_an_address_gets_through_without_a_rule_for_it() {
    let host = Host::new(Manner::Echo).await;
    let world = World::new(&["a.org", "*.a.org", "*.1", "localhost.localdomain"], &host).await;
    for literal in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "0.0.0.0",
        "0",
        "169.254.169.254",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "localhost",
        "1.1.1.1",
    ] {
        let port = host.port();
        for request in [
            format!("CONNECT {literal}:{port} HTTP/1.1\r\n\r\n"),
            format!("GET http://{literal}:{port}/ HTTP/1.1\r\n\r\n"),
        ] {
            let mut client = world.connect().await;
            client.say(request.as_bytes()).await;
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{request}{head}");
        }
        let bare = literal.trim_matches(['[', ']']);
        assert_eq!(socks(&world, 1, &by_name(bare), port).await.1, 2, "{literal}");
    }
    assert_eq!(host.connections(), 0);
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_refused() {
    let host = Host::new(Manner::Echo).await;
    for answers in [
        &["127.0.0.1"][..],
        &["::1", "127.0.0.1"],
        &["10.0.0.1", "192.168.0.1"],
        &["::ffff:127.0.0.1"],
        &["169.254.169.254"],
    ] {
        let timeouts = crate::timeouts::ProxyTimeouts::DEFAULT;
        let world = World::with(&["a.org", "*.b.org"], &host, timeouts, answers).await;
        for name in ["a.org", "x.b.org"] {
            let mut client = world.connect().await;
            let place = format!("{name}:{}", host.port());
            client.say(format!("CONNECT {place} HTTP/1.1\r\n\r\n").as_bytes()).await;
            let answer = client.answer().await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(answer.contains(&format!("{place}=ADDRESS")), "{answer}");
        }
    }
    assert_eq!(host.connections(), 0);
}

#[tokio::test]
async fn a_rule_that_names_this_machine_reaches_it_whatever_dns_says() {
    let host = Host::new(Manner::Echo).await;
    let timeouts = crate::timeouts::ProxyTimeouts::DEFAULT;
    let rules = ["localhost:{}", "index.corp=127.0.0.1"];
    let world = World::with(&rules, &host, timeouts, &["192.0.2.1"]).await;
    for name in ["localhost", "index.corp"] {
        let mut client = world.tunnel(&format!("{name}:{}", host.port())).await;
        client.say(b"\0!").await;
        assert_eq!(client.hear(2).await, b"\0!");
    }
}

#[tokio::test]
async fn an_unreachable_allowed_host_is_not_counted_as_refused() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(
        &["a.org", "b.org:1=127.0.0.1"],
        &host,
        crate::timeouts::ProxyTimeouts::DEFAULT,
        &[],
    )
    .await;
    for (place, reason) in
        [("a.org:80", "cannot be resolved"), ("b.org:1", "refuses the connection")]
    {
        let mut client = world.connect().await;
        client.say(format!("CONNECT {place} HTTP/1.1\r\n\r\n").as_bytes()).await;
        let answer = client.answer().await;
        // Many programs show only the status line.
        let status = answer.lines().next().unwrap_or_default();
        assert!(status.starts_with("HTTP/1.1 502 ") && status.contains(reason), "{answer}");
    }
    assert!(world.ledger.log().decisions.iter().all(|decision| decision.allowed));
}
