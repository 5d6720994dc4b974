//! HTTP inside a tunnel: a request for another host than the tunnel's does not arrive.

use super::world::{Host, Manner, World};

const OK: Manner = Manner::Answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
const RULES: [&str; 2] = ["a.org=127.0.0.1", "b.org:{}=127.0.0.1"];

#[tokio::test]
async fn requests_for_the_tunnel_s_host_share_its_connection() {
    let host = Host::new(OK).await;
    let world = World::new(&RULES, &host).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    for name in ["a.org", "A.org:99", "b.org"] {
        client.say(format!("GET /{name} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes()).await;
        assert!(client.answer().await.ends_with("hi"), "{name}");
    }
    let heard = host.heard();
    for expected in ["GET /a.org HTTP/1.1", "host: a.org:", "GET /b.org HTTP/1.1", "host: b.org:"] {
        assert!(heard.contains(expected), "{heard}");
    }
    assert_eq!(host.connections(), 1);
}

#[tokio::test]
async fn a_forged_host_never_arrives_be_it_in_the_first_request_or_a_later_one() {
    let host = Host::new(OK).await;
    let world = World::new(&RULES, &host).await;
    let place = format!("a.org:{}", host.port());
    for forged in [
        "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
        "get / HTTP/1.1\nHost: evil.org\n\n",
        "\r\nGET / HTTP/1.0\r\nHost: evil.org\r\n\r\n",
        "GET scheme://evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org\r\nHost: evil.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : evil.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org@evil.org\r\n\r\n",
        "CONNECT evil.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n",
    ] {
        let mut client = world.tunnel(&place).await;
        client.say(forged.replace("scheme", "http").as_bytes()).await;
        let head = client.head().await;
        let status = head.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "403"].contains(&status), "{forged}{head}");
    }
    assert_eq!(host.heard(), "");
    let mut client = world.tunnel(&place).await;
    client.say(b"GET /1 HTTP/1.1\r\nHost: a.org\r\n\r\n").await;
    assert!(client.answer().await.ends_with("hi"));
    client.say(b"GET /2 HTTP/1.1\r\nHost: evil.org\r\n\r\n").await;
    let answer = client.answer().await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("evil.org"), "{answer}");
    assert!(host.heard().contains("GET /1 ") && !host.heard().contains("GET /2 "));
    assert!(world.refusals().iter().any(|(host, why)| host == "evil.org" && why.contains("HTTP")));
}

#[tokio::test]
async fn a_request_without_a_host_is_sent_with_the_tunnel_s() {
    let host = Host::new(OK).await;
    let world = World::new(&RULES, &host).await;
    let mut client = world.tunnel(&format!("a.org:{}", host.port())).await;
    client.say(b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(client.answer().await.ends_with("hi"));
    assert!(host.heard().contains(&format!("host: a.org:{}\r\n", host.port())));
}

#[tokio::test]
async fn a_tunnel_ends_with_the_host_s_connection() {
    let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(closing.as_bytes()).await.unwrap();
    });
    let unused = Host::new(OK).await;
    let world = World::new(&RULES, &unused).await;
    let mut client = world.tunnel(&format!("a.org:{port}")).await;
    client.say(b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n").await;
    let all = String::from_utf8(client.rest().await).unwrap();
    assert!(all.starts_with("HTTP/1.1 200 OK") && all.ends_with("hi"), "{all}");
}

#[tokio::test]
async fn a_web_socket_passes_and_no_other_switch_does() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \
                     websocket\r\n\r\n";
    let host = Host::new(Manner::Answer(switching)).await;
    let world = World::new(&RULES, &host).await;
    let place = format!("a.org:{}", host.port());
    let ask = |to: &str| {
        format!("GET / HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: {to}\r\n\r\n")
    };
    let mut client = world.tunnel(&place).await;
    client.say(ask("websocket").as_bytes()).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: websocket"), "{head}");
    // The test host reads the WebSocket bytes as one more HTTP head and answers it, so the bytes passed
    // through.
    client.say(b"\x81\x01x\r\n\r\n").await;
    assert_eq!(client.hear(switching.len()).await, switching.as_bytes());
    let mut client = world.tunnel(&place).await;
    client.say(ask("h2c").as_bytes()).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(!host.heard().contains("h2c"), "the upgrade request does not arrive");
}
