//! Time limits, the connection limit, and the end of a session.

use std::time::Duration;

use super::world::{Host, Manner, PATIENCE, World};
use crate::hello::fixtures::hello;
use crate::ledger::CONNECTIONS_MAX;
use crate::timeouts::ProxyTimeouts;

/// A time limit short enough for a test to wait for.
const SOON: Duration = Duration::from_millis(100);

const RULES: [&str; 1] = ["a.org=127.0.0.1"];
const LONG: ProxyTimeouts = ProxyTimeouts { head: PATIENCE, hello: PATIENCE, idle: PATIENCE };

#[tokio::test]
async fn a_client_that_sends_no_complete_request_is_closed() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(&RULES, &host, ProxyTimeouts { head: SOON, ..LONG }, &[]).await;
    for words in [&b""[..], b"CONNECT a.org", b"\x05\x01", b"\x05\x01\x00\x05\x01\x00\x03\x05a"] {
        let mut client = world.connect().await;
        client.say(words).await;
        let rest = client.rest().await;
        assert!(rest.len() <= 2 || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
    assert_eq!(host.connections(), 0);
}

#[tokio::test]
async fn a_hello_that_does_not_end_is_closed_and_nothing_of_it_arrives() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(&RULES, &host, ProxyTimeouts { hello: SOON, ..LONG }, &[]).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    client.say(&hello("a.org")[..20]).await;
    assert_eq!(client.rest().await, b"");
    assert_eq!(host.heard(), "");
}

#[tokio::test]
async fn a_slow_line_passes_unless_it_turns_out_to_be_a_request() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(&RULES, &host, ProxyTimeouts { hello: SOON, ..LONG }, &[]).await;
    let place = format!("a.org:{}", host.port());
    let mut client = world.tunnel(&place).await;
    client.say(b"HELLO").await;
    assert_eq!(client.hear(5).await, b"HELLO", "some protocols have no lines");
    client.say(b" AGAIN").await;
    assert_eq!(client.hear(6).await, b" AGAIN");
    let mut client = world.tunnel(&place).await;
    client.say(b"GET / HT").await;
    assert_eq!(client.hear(8).await, b"GET / HT");
    client.say(b"TP/1.1\r\nHost: evil.org\r\n\r\n").await;
    assert_eq!(client.rest().await, b"");
    assert!(!host.heard().contains("evil"), "{}", host.heard());
}

#[tokio::test]
async fn a_first_line_without_end_is_refused_at_the_limit() {
    let host = Host::new(Manner::Answer("")).await;
    let world = World::with(&RULES, &host, LONG, &[]).await;
    for (start, byte) in [(&b"GET /"[..], b'a'), (b"\x16\x03\x01\x40\x00\x01\x00\xff\xff", 0)] {
        let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
        client.say(start).await;
        client.say(&vec![byte; 64 * 1024]).await;
        assert_eq!(client.rest().await, b"");
    }
    assert_eq!(host.heard(), "");
}

#[tokio::test]
async fn a_silent_connection_is_closed_and_a_busy_one_is_not() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(&RULES, &host, ProxyTimeouts { idle: 4 * SOON, ..LONG }, &[]).await;
    let place = format!("a.org:{}", host.port());
    let mut busy = world.tunnel(&place).await;
    let mut silent = world.tunnel(&place).await;
    let keep_busy = async {
        let mut beat = tokio::time::interval(SOON / 2);
        loop {
            beat.tick().await;
            busy.say(b"\0").await;
            busy.hear(1).await;
        }
    };
    tokio::select! {
        rest = silent.rest() => assert_eq!(rest, b""),
        () = keep_busy => {}
    }
    busy.say(b"\0").await;
    assert_eq!(busy.hear(1).await, b"\0");
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_counted_and_a_freed_slot_is_reused() {
    let host = Host::new(Manner::Echo).await;
    let mut world = World::with(&RULES, &host, LONG, &[]).await;
    let place = format!("a.org:{}", host.port());
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        held.push(world.tunnel(&place).await);
    }
    let mut one_more = world.connect().await;
    assert_eq!(one_more.rest().await, b"");
    let [(host_named, reason)] = &world.refusals()[..] else { panic!("one refusal is counted") };
    assert!(host_named == "*" && reason.contains("too many"), "{reason}");
    for client in &mut held {
        client.say(b"\0").await;
        assert_eq!(client.hear(1).await, b"\0", "the others go on");
    }
    held.pop();
    // The slot is free when the proxy has seen the close. Until then, a new connection is closed again.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut client = world.connect().await;
        client.say(b"\x05\x01\x00").await;
        if client.rest_or(2).await == [5, 0] {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the slot is not freed");
    }
    world.events.close();
}

#[tokio::test]
async fn connections_end_with_their_session() {
    let host = Host::new(Manner::Echo).await;
    let world = World::with(&RULES, &host, LONG, &[]).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    drop(world.events);
    assert_eq!(client.rest().await, b"");
}
