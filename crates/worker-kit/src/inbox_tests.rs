//! Tests of the inbox: tables of frames, and the same bytes in all pieces.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use windlass_protocol::frame::encode;

use super::*;

fn frame(header: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header: serde_json::Value = serde_json::from_str(header).unwrap();
    encode(&mut bytes, &header, body).unwrap();
    bytes
}

fn shown(inbox: &mut Inbox) -> String {
    let mut text = String::new();
    while let Some(message) = inbox.next() {
        text += &format!("{message:?}\n");
    }
    text
}

/// Each line is a header and, after a tab, a body.
fn stream(lines: &str) -> Vec<u8> {
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .flat_map(|line| {
            let (header, body) = line.split_once(" | ").unwrap_or((line, ""));
            frame(header, body.as_bytes())
        })
        .collect()
}

fn check(lines: &str, expected: Expect) {
    let bytes = stream(lines);
    let mut whole = Inbox::default();
    whole.push(&bytes).unwrap();
    let text = shown(&mut whole);
    expected.assert_eq(&text);
    for size in [1, 2, 3, 7, 8, 9, 41] {
        let mut pieces = Inbox::default();
        for piece in bytes.chunks(size) {
            pieces.push(piece).unwrap();
        }
        assert_eq!(shown(&mut pieces), text, "in pieces of {size} bytes");
    }
}

#[test]
fn frames_become_messages() {
    check(
        r#"
        {"kind":"turn_start","turn":1} | 1+1
        {"kind":"turn_input","turn":1,"eof":true} | ada
        {"kind":"interrupt","turn":1}
        {"kind":"tool_result","turn":1,"call":4,"ok":true} | {}
        {"kind":"tool_result","turn":1,"call":5,"ok":false} | {"message":"no"}
        {"kind":"shutdown","grace_ms":2000}
        "#,
        expect![[r#"
            TurnStart { turn: TurnNo(1), code: b"1+1", context: None }
            Input { turn: TurnNo(1), bytes: b"ada", eof: true, keys: false }
            Interrupt { turn: TurnNo(1) }
            ToolResult { turn: TurnNo(1), call: CallNo(4), ok: true, body: b"{}" }
            ToolResult { turn: TurnNo(1), call: CallNo(5), ok: false, body: b"{\"message\":\"no\"}" }
            Shutdown { grace: 2s }
        "#]],
    );
}

#[test]
fn continued_messages_are_joined_whatever_comes_between() {
    check(
        r#"
        {"kind":"turn_start","turn":1,"more":true} | a
        {"kind":"interrupt","turn":1}
        {"kind":"turn_start","turn":1,"more":true} | b
        {"kind":"moon","more":true,"turn":[]} | x
        {"kind":"turn_start","turn":1,"phase":"full"} | c
        {"kind":"tool_result","turn":1,"call":1,"ok":true,"more":true} | 1
        {"kind":"tool_result","turn":1,"call":2,"ok":true,"more":true} | 2
        {"kind":"tool_result","turn":1,"call":1,"ok":true} | 1
        {"kind":"tool_result","turn":1,"call":2,"ok":false} | {}
        {"kind":"turn_input","turn":1,"more":true} | in
        {"kind":"turn_input","turn":1} | put
        "#,
        expect![[r#"
            Interrupt { turn: TurnNo(1) }
            TurnStart { turn: TurnNo(1), code: b"abc", context: None }
            ToolResult { turn: TurnNo(1), call: CallNo(1), ok: true, body: b"11" }
            ToolResult { turn: TurnNo(1), call: CallNo(2), ok: false, body: b"{}" }
            Input { turn: TurnNo(1), bytes: b"input", eof: false, keys: false }
        "#]],
    );
}

#[test]
fn a_message_without_an_end_does_not_reach_another_turn() {
    check(
        r#"
        {"kind":"turn_input","turn":1,"more":true} | old
        {"kind":"turn_input","turn":2} | new
        {"kind":"turn_start","turn":3,"more":true} | old
        {"kind":"turn_start","turn":4,"more":true} | ne
        {"kind":"turn_start","turn":4} | w
        "#,
        expect![[r#"
            Input { turn: TurnNo(2), bytes: b"new", eof: false, keys: false }
            TurnStart { turn: TurnNo(4), code: b"new", context: None }
        "#]],
    );
}

#[test]
fn an_interrupt_is_remembered_for_its_turn_only() {
    let mut inbox = Inbox::default();
    inbox.push(&stream(r#"{"kind":"interrupt","turn":7}"#)).unwrap();
    inbox.push(&stream(r#"{"kind":"interrupt","turn":6}"#)).unwrap();
    let interrupted = [5, 6, 7, 8].map(|turn| inbox.interrupted(TurnNo(turn)));
    assert_eq!(interrupted, [false, false, true, false]);
}

#[test]
fn malformed_bytes_are_refused() {
    let longest = u32::try_from(MESSAGE_BYTES_MAX).unwrap().to_be_bytes();
    for bytes in [
        &longest[..],
        b"\0\0\0\x03",
        b"\0\0\0\x04\0\0\0\x01",
        b"\0\0\0\x06\0\0\0\x02[]",
        b"\0\0\0\x06\0\0\0\x02{}",
        &stream(r#"{"kind":"turn_start","turn":"one"}"#),
        &stream(r#"{"kind":"tool_result","turn":1,"call":1}"#),
    ] {
        assert!(Inbox::default().push(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn a_message_is_bounded() {
    let part = frame(r#"{"kind":"turn_start","turn":1,"more":true}"#, &[b' '; 128 * 1024]);
    let mut inbox = Inbox::default();
    for _ in 0..128 {
        inbox.push(&part).unwrap();
    }
    let last = stream(r#"{"kind":"turn_start","turn":1}"#);
    inbox.push(&last).unwrap();
    assert!(
        matches!(inbox.next(), Some(KeeperMessage::TurnStart { code, .. }) if code.len() == MESSAGE_BYTES_MAX)
    );
    for _ in 0..128 {
        inbox.push(&part).unwrap();
    }
    assert!(matches!(inbox.push(&part), Err(InboxError::MessageTooLong)));
}

#[test]
fn waiting_messages_are_bounded() {
    let mut inbox = Inbox::default();
    let body = vec![0; 190_000];
    let result = frame(r#"{"kind":"tool_result","turn":1,"call":1,"ok":true}"#, &body);
    let mut count = 0;
    while inbox.has_room() {
        inbox.push(&result).unwrap();
        count += 1;
    }
    assert!(count * body.len() < WAITING_BYTES_MAX + body.len());
    while inbox.next().is_some() {}
    assert!(inbox.has_room());
}

proptest! {
    #[test]
    fn pieces_do_not_matter(sizes in prop::collection::vec(1usize..50, 1..40)) {
        let bytes = stream(r#"
            {"kind":"turn_start","turn":1,"more":true} | begin
            {"kind":"unknown"}
            {"kind":"interrupt","turn":1}
            {"kind":"turn_start","turn":1} | end
            {"kind":"turn_input","turn":1} | x
        "#);
        let mut whole = Inbox::default();
        whole.push(&bytes).unwrap();
        let mut pieces = Inbox::default();
        let mut rest = &bytes[..];
        for size in sizes.into_iter().cycle() {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            pieces.push(piece).unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(shown(&mut pieces), shown(&mut whole));
    }

    #[test]
    fn any_bytes_are_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut inbox = Inbox::default();
        let _ = inbox.push(&bytes);
    }
}
