//! The contract lines on output, against a real node, keeper and Python: its order, its bytes, its limits.
//! Displays and look-alikes of the protocol are in `contract_display.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use base64::Engine as _;
use windlass_client::Client;
use windlass_client::protocol::api::{CreateSession, OutputQuery, SubmitTurn, Turn, TurnQuery};
use windlass_client::protocol::limits::OUTPUT_BYTES_DEFAULT;
use windlass_client::protocol::{EventKind, Outcome, Seq, SessionId, Stream};
use windlass_testkit::{PATIENCE, TestNode, all_events, processes, run, run_ok, turn, within};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

async fn start_with(create: CreateSession) -> (TestNode, Client, SessionId) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let session = client.create_session(&create).await.unwrap().session.id;
    (node, client, session)
}

async fn start() -> (TestNode, Client, SessionId) {
    start_with(TestNode::create()).await
}

/// A piece of the session's raw output.
struct Piece {
    from: u64,
    bytes: Vec<u8>,
    /// Number of bytes that the node reports as missing before it.
    dropped: u64,
}

/// The session's raw output from `from` on.
async fn pieces(client: &Client, session: &SessionId, mut from: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    loop {
        let query = OutputQuery { from: Some(from), ..OutputQuery::default() };
        let read = within(PATIENCE, client.output(session, &query)).await.unwrap();
        if read.bytes.is_empty() {
            return pieces;
        }
        assert!(read.from >= from && read.next > from, "{} {} {from}", read.from, read.next);
        from = read.next;
        pieces.push(Piece { from: read.from, bytes: read.bytes.to_vec(), dropped: read.dropped });
    }
}

async fn raw(client: &Client, session: &SessionId, from: u64) -> Vec<u8> {
    pieces(client, session, from).await.into_iter().flat_map(|piece| piece.bytes).collect()
}

/// The session's output from its events, by stream and in order.
async fn streams(client: &Client, session: &SessionId) -> Vec<(Stream, Vec<u8>)> {
    let mut found: Vec<(Stream, Vec<u8>)> = Vec::new();
    for item in all_events(client, session).await {
        let EventKind::Output { stream, background } = item.event.kind else { continue };
        assert!(!background, "it was printed in its turn");
        let bytes = match (item.text, item.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => {
                base64::engine::general_purpose::STANDARD.decode(base64).unwrap()
            }
            other => panic!("a body in one form: {other:?}"),
        };
        match found.last_mut() {
            Some((last, all)) if *last == stream => all.extend(bytes),
            _ => found.push((stream, bytes)),
        }
    }
    found
}

#[tokio::test]
async fn contract_36_print_write_puts_and_echo_come_out_in_order() {
    let (_node, client, session) = start().await;
    let code = "import ctypes, os, subprocess, sys\n\
        c = ctypes.CDLL(None)\n\
        for i in range(10):\n\
        \x20   print('print', i)\n\
        \x20   os.write(1, b'write %d\\n' % i)\n\
        \x20   c.puts(b'puts %d' % i)\n\
        \x20   subprocess.run(['echo', 'echo', str(i)])\n\
        \x20   c.printf(b'printf %d ', i)\n\
        \x20   sys.stdout.write('half ')\n\
        \x20   os.system(f'printf \"system {i}\\n\"')";
    let output = run_ok(&client, &session, code).await;
    let expected: String = (0..10)
        .map(|i| format!("print {i}\nwrite {i}\nputs {i}\necho {i}\nprintf {i} half system {i}\n"))
        .collect();
    assert_eq!(output, expected);
    assert_eq!(raw(&client, &session, 0).await, expected.as_bytes());
}

/// The lines of contract line 37: 20 lines of exactly 1 MiB, each of one letter.
const LONG_LINES: &str = "for i in range(20):\n    print(chr(65 + i) * (1024 * 1024 - 1))";

fn long_lines() -> Vec<u8> {
    let line = |letter: u8| [vec![letter; MIB as usize - 1], b"\n".to_vec()].concat();
    (b'A'..b'A' + 20).flat_map(line).collect()
}

/// The text between two markers.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let text = text.split_once(before).unwrap().1;
    text.split_once(after).unwrap().0
}

/// A reply keeps to its byte budget. What it shows and what it reports as omitted is the whole output.
async fn keeps_to(client: &Client, turn: &Turn, budget: usize, whole: &[u8]) {
    let view = &turn.output;
    assert!(view.text.len() <= budget, "{} bytes for a budget of {budget}", view.text.len());
    assert_eq!(view.bytes, whole.len() as u64);
    let (head, rest) = view.text.split_once("\n[...").unwrap();
    let tail = rest.split_once("...]\n").unwrap().1;
    assert!(whole.starts_with(head.as_bytes()) && whole.ends_with(tail.as_bytes()));
    // A small budget is mostly the marker; a usual one is mostly output.
    assert!(head.len() >= budget / 5 && tail.len() >= budget / 5, "{} {}", head.len(), tail.len());
    let from: u64 = between(rest, "output?from=", "&to=").parse().unwrap();
    let to: u64 = between(rest, "&to=", " ").parse().unwrap();
    assert_eq!(from, view.from + head.len() as u64);
    assert_eq!(to, view.from + view.bytes - tail.len() as u64);
    assert_eq!(view.omitted_bytes, to - from);
    assert!(rest.contains(&format!("/v1/sessions/{}/output", turn.session)), "{rest:.200}");
    // The link to the rest works.
    let query = OutputQuery { from: Some(from), to: Some(from + 10), ..OutputQuery::default() };
    let start = client.output(&turn.session, &query).await.unwrap();
    let at = head.len();
    assert_eq!((start.from, start.bytes.as_ref()), (from, &whole[at..at + 10]));
    let query = OutputQuery { from: Some(to - 10), to: Some(to), ..OutputQuery::default() };
    let end = client.output(&turn.session, &query).await.unwrap();
    let at = whole.len() - tail.len();
    assert_eq!(end.bytes.as_ref(), &whole[at - 10..at]);
}

/// Number of turns that write both streams alternately, and of lines per stream in each.
const TORN_ROUNDS: usize = 30;
const TORN_LINES: usize = 300;

#[tokio::test]
async fn contract_36_one_write_is_never_torn_by_the_other_stream() {
    let (_node, client, session) = start().await;
    let code = format!(
        "import sys\nfor _ in range({TORN_LINES}):\n    \
         sys.stderr.write('\u{e9}\u{e9}\u{e9} warning\\n'); sys.stdout.write('out\\n')"
    );
    for _ in 0..TORN_ROUNDS {
        run_ok(&client, &session, &code).await;
    }
    let all = String::from_utf8(raw(&client, &session, 0).await).expect("no character is torn");
    let torn: Vec<&str> =
        all.lines().filter(|line| !["out", "\u{e9}\u{e9}\u{e9} warning"].contains(line)).collect();
    assert_eq!(torn, Vec::<&str>::new());
    assert_eq!(all.lines().count(), 2 * TORN_ROUNDS * TORN_LINES);
}

#[tokio::test]
async fn contract_37_long_lines_keep_to_the_byte_budget_of_a_reply() {
    let (_node, client, session) = start().await;
    run_ok(&client, &session, "print('an earlier turn')").await;
    let whole = long_lines();
    let long = run(&client, &session, LONG_LINES).await;
    assert_eq!(long.outcome, Some(Outcome::Ok));
    keeps_to(&client, &long, OUTPUT_BYTES_DEFAULT, &whole).await;
    for budget in [512, 1000, 16 * KIB as usize, 100_000, MIB as usize] {
        let query =
            TurnQuery { wait_ms: 0, output_bytes_max: Some(budget), ..TurnQuery::default() };
        let looked = client.turn(&session, &long.id, query).await.unwrap();
        keeps_to(&client, &looked, budget, &whole).await;
    }
    let all = raw(&client, &session, long.output.from).await;
    assert!(all == whole, "the rest can be read, all {} bytes of it", whole.len());
    let query =
        OutputQuery { tail: Some(5), turn: Some(long.id.to_string()), ..OutputQuery::default() };
    assert_eq!(client.output(&session, &query).await.unwrap().bytes.as_ref(), b"TTTT\n");
}

#[tokio::test]
async fn contract_37_a_small_budget_of_the_request_itself_holds() {
    let (_node, client, session) = start().await;
    let submit = SubmitTurn { output_bytes_max: Some(1000), ..turn(LONG_LINES) };
    let long = within(PATIENCE, client.run_turn(&session, submit)).await.unwrap();
    keeps_to(&client, &long, 1000, &long_lines()).await;
}

/// Prints blocks of 1 MiB. Every 16 bytes contain the block number and the offset in it.
fn print_blocks(count: u64) -> String {
    format!(
        "import sys\n\
         for block in range({count}):\n\
         \x20   line = b'%07d %07d\\n'\n\
         \x20   sys.stdout.buffer.write(b''.join(line % (block, at) for at in range(65536)))"
    )
}

/// The bytes that [`print_blocks`] prints at `from`.
fn check_block_bytes(from: u64, bytes: &[u8]) {
    let first = from / 16;
    let last = (from + bytes.len() as u64).div_ceil(16);
    let lines: String =
        (first..last).map(|line| format!("{:07} {:07}\n", line / 65536, line % 65536)).collect();
    let skip = (from % 16) as usize;
    assert!(&lines.as_bytes()[skip..skip + bytes.len()] == bytes, "wrong bytes at {from}");
}

/// Bytes of all files below `place`.
fn disk_bytes(place: &Path) -> u64 {
    let entries = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => disk_bytes(&entry.path()),
            false => entry.metadata().map_or(0, |file| file.len()),
        })
        .sum()
}

#[tokio::test]
async fn contract_38_a_gibibyte_of_output_costs_the_node_no_memory() {
    const QUOTA: u64 = 64 * MIB;
    let create = CreateSession { output_quota_bytes: Some(QUOTA), ..TestNode::create() };
    let (node, client, session) = start_with(create).await;
    run_ok(&client, &session, "import sys\nblock = b'x' * (1024 * 1024 - 1) + b'\\n'").await;
    // A client follows the session and does not read for now.
    let mut follower = client.events(&session, Seq(0));
    within(PATIENCE, follower.next()).await.unwrap().unwrap();
    let before = processes::rss_bytes(node.pid()).unwrap();
    let code = "for _ in range(1024):\n    sys.stdout.buffer.write(block)";
    let deadline = 10 * PATIENCE;
    let flood = within(deadline, client.run_turn(&session, turn(code))).await.unwrap();
    assert_eq!((flood.outcome, flood.output.bytes), (Some(Outcome::Ok), 1024 * MIB));
    let grown = processes::peak_rss_bytes(node.pid()).unwrap().saturating_sub(before);
    assert!(grown <= 64 * MIB, "the node grew by {} MiB", grown / MIB);
    let after = client.session(&session).await.unwrap();
    let kept = after.output_bytes - after.output_dropped_bytes;
    assert_eq!(after.output_bytes, 1024 * MIB);
    assert!((QUOTA * 3 / 4..=QUOTA).contains(&kept), "{} MiB are kept", kept / MIB);
    let disk = disk_bytes(&node.dirs().state);
    assert!(disk <= QUOTA + 8 * MIB, "{} MiB are on the disk", disk / MIB);
    // Reading it all costs no memory either.
    let mut read = 0;
    while read < kept {
        let item = within(PATIENCE, follower.next()).await.unwrap().unwrap();
        if matches!(item.event.kind, EventKind::Output { .. }) {
            read += item.bytes;
        }
        if matches!(item.event.kind, EventKind::TurnEnded { .. })
            && item.event.turn == Some(flood.number)
        {
            break;
        }
    }
    assert!(read >= kept, "the follower saw {read} of {kept} bytes");
    let grown = processes::peak_rss_bytes(node.pid()).unwrap().saturating_sub(before);
    assert!(grown <= 64 * MIB, "the node grew by {} MiB", grown / MIB);
}

#[tokio::test]
async fn contract_38_past_the_quota_the_missing_bytes_are_counted_exactly() {
    const QUOTA: u64 = 4 * MIB;
    const PRINTED: u64 = 24 * MIB;
    let create = CreateSession { output_quota_bytes: Some(QUOTA), ..TestNode::create() };
    let (_node, client, session) = start_with(create).await;
    let flood = run(&client, &session, &print_blocks(PRINTED / MIB)).await;
    assert_eq!((flood.outcome, flood.output.bytes), (Some(Outcome::Ok), PRINTED));
    let after = client.session(&session).await.unwrap();
    let found = pieces(&client, &session, 0).await;
    for piece in &found {
        check_block_bytes(piece.from, &piece.bytes);
    }
    let kept: u64 = found.iter().map(|piece| piece.bytes.len() as u64).sum();
    let missing: u64 = found.iter().map(|piece| piece.dropped).sum();
    assert_eq!(missing, PRINTED - kept, "a reader is told what is missing");
    assert_eq!(after.output_bytes, PRINTED);
    assert_eq!(after.output_dropped_bytes, PRINTED - kept, "{kept} bytes can be read");
    assert!((QUOTA * 3 / 4..=QUOTA).contains(&kept), "{kept} bytes are kept");
    // The head and the tail are kept, the middle was dropped, and a reply still shows both.
    assert_eq!((found[0].from, found[0].dropped), (0, 0));
    let last = found.last().unwrap();
    assert_eq!(last.from + last.bytes.len() as u64, PRINTED);
    assert!(flood.output.text.starts_with("0000000 0000000\n"));
    assert!(flood.output.text.ends_with("0000023 0065535\n"), "{}", flood.output.text.len());
}

#[tokio::test]
async fn contract_38_below_the_quota_nothing_is_missing() {
    let create = CreateSession { output_quota_bytes: Some(16 * MIB), ..TestNode::create() };
    let (_node, client, session) = start_with(create).await;
    run_ok(&client, &session, &print_blocks(12)).await;
    let after = client.session(&session).await.unwrap();
    assert_eq!((after.output_bytes, after.output_dropped_bytes), (12 * MIB, 0));
    let all = raw(&client, &session, 0).await;
    assert_eq!(all.len() as u64, 12 * MIB);
    check_block_bytes(0, &all);
}

#[tokio::test]
async fn contract_39_any_bytes_survive() {
    let (_node, client, session) = start().await;
    // All bytes, a NUL, bytes of lone surrogates, a character in two writes, an incomplete one at the end.
    let code = "import os, sys\n\
        sys.stdout.buffer.write(bytes(range(256)))\n\
        os.write(1, b'\\xc3')\n\
        os.write(1, b'\\xa9|')\n\
        print('\\udcff|\\0|', end='')\n\
        _ = os.write(1, b'\\xed\\xa0\\x80\\xf0\\x9f\\x98')";
    let odd = run(&client, &session, code).await;
    assert_eq!(odd.outcome, Some(Outcome::Ok));
    let mut expected: Vec<u8> = (0..=255).collect();
    expected.extend(b"\xc3\xa9|\xff|\0|\xed\xa0\x80\xf0\x9f\x98");
    assert_eq!(raw(&client, &session, 0).await, expected);
    let base64 = odd.output.base64.expect("bytes that are not text come in base64");
    assert_eq!(base64::engine::general_purpose::STANDARD.decode(base64).unwrap(), expected);
    assert_eq!(streams(&client, &session).await, [(Stream::Stdout, expected)]);
}

#[tokio::test]
async fn contract_39_a_character_in_two_writes_is_one_character() {
    let (_node, client, session) = start().await;
    // A client reads between the two writes, so that they are two events.
    let code = "import os\nos.write(1, b'<\\xf0\\x9f')\ninput()\n_ = os.write(1, b'\\x98\\x80>')";
    let asking = run(&client, &session, code).await;
    let eof =
        windlass_client::protocol::api::TurnInput { text: Some("\n".into()), ..Default::default() };
    let done = within(PATIENCE, client.answer_turn(&session, &asking.id, &eof)).await.unwrap();
    assert_eq!((done.output.text.as_str(), done.output.base64), ("<\u{1f600}>", None));
}

#[tokio::test]
async fn contract_42_what_is_printed_before_an_error_is_kept_and_comes_before_it() {
    let (_node, client, session) = start().await;
    let code = "import os\n\
        print('first')\n\
        os.write(1, b'second\\n')\n\
        for i in range(20000):\n\
        \x20   print('line', i)\n\
        1 / 0";
    let failed = run(&client, &session, code).await;
    assert_eq!(failed.outcome, Some(Outcome::Error));
    assert_eq!(failed.error.as_ref().unwrap().name, "ZeroDivisionError");
    let mut expected = "first\nsecond\n".to_owned();
    expected.extend((0..20000).map(|i| format!("line {i}\n")));
    let found = streams(&client, &session).await;
    assert_eq!(found.len(), 2, "{:?}", found.iter().map(|(stream, _)| stream).collect::<Vec<_>>());
    assert!(found[0] == (Stream::Stdout, expected.into_bytes()));
    assert_eq!(found[1].0, Stream::Traceback);
    assert!(found[1].1.ends_with(b"ZeroDivisionError: division by zero\n"));
    assert!(failed.output.text.starts_with("first\nsecond\n"));
    assert!(failed.output.text.ends_with("ZeroDivisionError: division by zero\n"));
}

#[tokio::test]
async fn contract_42_what_is_printed_before_a_crash_is_kept_too() {
    let (_node, client, session) = start().await;
    let code = "print('x' * 300_000)\nprint('last words')\nimport os\nos.kill(os.getpid(), 9)";
    let crashed = run(&client, &session, code).await;
    assert_eq!(crashed.outcome, Some(Outcome::Lost));
    assert!(crashed.output.text.ends_with("last words\n"));
    assert_eq!(crashed.output.bytes, 300_001 + 11);
}
