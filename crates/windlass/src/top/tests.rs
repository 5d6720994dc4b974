//! The model and the view together: samples and keys in, effects and screens out.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use serde_json::{Value, json};
use windlass_protocol::SessionId;
use windlass_protocol::api::SessionRow;

use super::columns::TopScope;
use super::keys::{KeyReader, TopKey};
use super::model::{
    NodeContact, TailPart, TailState, TopEffect, TopEvent, TopMode, TopModel, TopNode, TopSample,
    TopSort,
};
use super::view::{self, TopColours, TopLook};

const NOW_MS: u64 = 100_000;

const PLAIN: TopLook = TopLook { scope: TopScope::Node, colours: TopColours::Off };

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn row(session: &str, state: &str, created_at_ms: u64, more: &Value) -> SessionRow {
    let mut row = json!({
        "id": session, "kind": "python", "state": state, "workspace": format!("/srv/{session}"),
        "created_at_ms": created_at_ms, "turns": 0, "output_bytes": 0,
    });
    for (name, value) in more.as_object().unwrap() {
        row[name] = value.clone();
    }
    serde_json::from_value(row).unwrap()
}

/// Three sessions. Processor times are read at `measured_at_ms`.
fn rows(measured_at_ms: u64, asks_cpu_ms: u64, runs_cpu_ms: u64) -> Vec<SessionRow> {
    let asks = json!({
        "client": "claude-code", "turn": 3, "turns": 3, "waiting": 1, "waits_for_input": true,
        "memory_bytes": 327_155_712, "cpu_ms": asks_cpu_ms, "measured_at_ms": measured_at_ms,
    });
    let runs = json!({
        "kind": "shell", "turn": 7, "turns": 7, "memory_bytes": 1_048_576, "cpu_ms": runs_cpu_ms,
        "measured_at_ms": measured_at_ms,
    });
    vec![
        row("rests", "idle", 10_000, &json!({})),
        row("runs", "busy", 30_000, &runs),
        row("asks", "awaiting_input", 60_000, &asks),
    ]
}

fn sample(sessions: Vec<SessionRow>) -> TopEvent {
    let node = TopNode { version: "1.2.3".to_owned(), ..TopNode::default() };
    TopEvent::Sampled(TopSample { node, sessions, is_cut: false })
}

/// A model after two samples, which has selected the first session.
fn model() -> TopModel {
    let mut model = TopModel::new();
    let first = model.update(sample(rows(1000, 100, 0)));
    assert_eq!(first, [TopEffect::Follow(Some(id("asks")))]);
    assert!(model.update(sample(rows(2000, 350, 1500))).is_empty());
    model
}

/// Presses keys, as a terminal sends them.
fn press(model: &mut TopModel, keys: &str) -> Vec<TopEffect> {
    let keys = KeyReader::default().read(keys.as_bytes());
    keys.into_iter().flat_map(|key| model.update(TopEvent::Key(key))).collect()
}

fn order(model: &TopModel) -> String {
    let ids: Vec<&str> = model.visible().iter().map(|one| one.row.id.as_str()).collect();
    ids.join(" ")
}

fn selected(model: &TopModel) -> &str {
    model.selected().map_or("-", |session| session.row.id.as_str())
}

fn drawn(model: &TopModel, look: TopLook, width: u16, height: u16) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    view::render(model, look, NOW_MS, &mut buffer);
    buffer
}

/// The text of a screen, without spaces at the ends of lines.
fn screen(model: &TopModel, width: u16, height: u16) -> Vec<String> {
    let buffer = drawn(model, PLAIN, width, height);
    let lines = buffer.content.chunks(usize::from(width.max(1)));
    lines
        .map(|line| {
            let text: String = line.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned()
        })
        .collect()
}

#[test]
fn sessions_are_sorted_and_the_selection_stays_on_its_session() {
    let mut model = model();
    assert_eq!((order(&model), selected(&model)), ("asks runs rests".to_owned(), "asks"));
    for (sort, expected) in [
        (TopSort::Memory, "asks runs rests"),
        (TopSort::Processor, "runs asks rests"),
        (TopSort::State, "asks runs rests"),
        (TopSort::Age, "rests runs asks"),
        (TopSort::Attention, "asks runs rests"),
    ] {
        assert!(press(&mut model, "s").is_empty());
        assert_eq!((model.sort, order(&model).as_str()), (sort, expected));
        assert_eq!(selected(&model), "asks", "{sort:?}");
    }
    // A session that is new or changes its state moves the others, and not the selection.
    let mut later = rows(3000, 350, 1500);
    later.push(row("new", "awaiting_input", 90_000, &json!({"waits_for_input": true})));
    assert!(model.update(sample(later)).is_empty());
    assert_eq!((order(&model), selected(&model)), ("new asks runs rests".to_owned(), "asks"));
}

#[test]
fn keys_move_the_selection_and_the_output_follows() {
    let mut model = model();
    model.set_page(2);
    for (keys, expected) in [
        ("j", "runs"),
        ("\x1b[B", "rests"),
        ("k", "runs"),
        ("\x1b[A", "asks"),
        ("\x1b[6~", "rests"),
        ("\x1b[5~", "asks"),
        ("\x1b[F", "rests"),
        ("\x1b[H", "asks"),
    ] {
        let effects = press(&mut model, keys);
        assert_eq!(effects, [TopEffect::Follow(Some(id(expected)))], "{keys:?}");
        assert_eq!(selected(&model), expected);
    }
    // At an end, nothing changes, and the stream stays.
    assert!(press(&mut model, "k\x1b[H\x1b[5~").is_empty());
    // The session in the place of one that has ended is selected.
    press(&mut model, "j");
    let rest = rows(3000, 350, 1500).into_iter().filter(|row| row.id != id("runs"));
    let effects = model.update(sample(rest.collect()));
    assert_eq!(effects, [TopEffect::Follow(Some(id("rests")))]);
    assert_eq!(model.update(sample(Vec::new())), [TopEffect::Follow(None)]);
    assert!(press(&mut model, "jkiKa\r").is_empty());
    assert_eq!(model.notice, "no session is selected");
}

#[test]
fn a_filter_shows_the_sessions_that_contain_its_text() {
    let mut model = model();
    assert!(press(&mut model, "/PYTHON").is_empty());
    assert_eq!((order(&model).as_str(), selected(&model)), ("asks rests", "asks"));
    // The keys are text while the filter is typed.
    let effects = press(&mut model, "\x15q");
    assert_eq!(effects, [TopEffect::Follow(None)]);
    assert_eq!((order(&model).as_str(), model.filter.as_str()), ("", "q"));
    let effects = press(&mut model, "\x7frun\r");
    assert_eq!(effects.last(), Some(&TopEffect::Follow(Some(id("runs")))));
    assert_eq!((order(&model).as_str(), &model.mode), ("runs", &TopMode::Sessions));
    for (text, expected) in [
        ("awaiting in", "asks"),
        ("claude", "asks"),
        ("/srv/rests", "rests"),
        ("shell", "runs"),
        ("é", ""),
    ] {
        press(&mut model, "\x1b");
        press(&mut model, &format!("/{text}\r"));
        assert_eq!(order(&model), expected, "{text}");
    }
    // Escape while typing brings the filter before back; Escape afterwards ends it.
    press(&mut model, "/x");
    press(&mut model, "\x1b");
    assert_eq!(model.filter, "é");
    press(&mut model, "\x1b");
    assert_eq!(order(&model), "asks runs rests");
    press(&mut model, &format!("/{}", "x".repeat(1000)));
    assert!(model.filter.len() < 100);
}

#[test]
fn a_kill_needs_an_answer_and_an_interrupt_a_turn() {
    let mut model = model();
    assert!(press(&mut model, "K").is_empty());
    let question = "kill session asks and all its processes? y or n";
    assert_eq!(screen(&model, 80, 24)[23], question);
    // A terminal with one line shows the question in place of the node.
    assert_eq!(screen(&model, 80, 1), [question]);
    assert!(press(&mut model, "n").is_empty());
    assert_eq!(model.notice, "session asks stays");
    assert!(screen(&model, 80, 1)[0].starts_with("windlass 1.2.3"));
    // Alt-y is no answer.
    assert!(press(&mut model, "K\x1by").is_empty());
    assert_eq!(model.notice, "session asks stays");
    assert!(press(&mut model, "KY").is_empty());
    assert_eq!(press(&mut model, "Ky"), [TopEffect::Close(id("asks"))]);
    assert_eq!(press(&mut model, "i"), [TopEffect::Interrupt(id("asks"))]);
    for keys in ["a", "\r"] {
        assert_eq!(press(&mut model, keys), [TopEffect::Attach(id("asks"))]);
    }
    press(&mut model, "\x1b[F");
    assert!(press(&mut model, "i").is_empty());
    assert_eq!(model.notice, "session rests runs no turn");
    // The question ends with its session: the `y` must not close the next one.
    press(&mut model, "K");
    model.update(sample(rows(3000, 0, 0).into_iter().skip(1).collect()));
    assert_eq!(model.mode, TopMode::Sessions);
    assert!(press(&mut model, "y").is_empty());
}

#[test]
fn quitting_works_everywhere() {
    for before in ["", "/", "K", "?"] {
        let mut model = model();
        press(&mut model, before);
        assert_eq!(press(&mut model, "\x03"), [TopEffect::Quit], "{before}");
    }
    let mut model = model();
    assert_eq!(press(&mut model, "\x0c"), [TopEffect::Redraw]);
    // The first key closes the help.
    assert!(press(&mut model, "?q").is_empty());
    assert_eq!(press(&mut model, "q"), [TopEffect::Quit]);
    assert_eq!(model.update(TopEvent::Key(TopKey::Interrupt)), [TopEffect::Quit]);
}

#[test]
fn a_node_that_goes_away_keeps_its_rows_and_its_output_goes_on_afterwards() {
    let mut model = model();
    let output = |part| TopEvent::Output(id("asks"), part);
    model.update(output(TailPart::Earlier(b"before\n".to_vec())));
    assert_eq!(model.tail.state, TailState::Live);
    model.update(output(TailPart::Failed("cut".to_owned())));
    assert!(model.update(TopEvent::Unanswered("refused\x1b[2J".to_owned())).is_empty());
    assert_eq!(model.contact, NodeContact::Lost("refused\x1b[2J".to_owned()));
    let lines = screen(&model, 80, 24);
    assert_eq!(lines[0], "the node does not answer, trying again: refused[2J");
    assert!(lines[2].starts_with(">asks"), "{lines:?}");
    assert!(lines.contains(&"before".to_owned()), "{lines:?}");
    let look = TopLook { colours: TopColours::On, ..PLAIN };
    let buffer = drawn(&model, look, 80, 24);
    assert!(buffer[(1, 3)].modifier.contains(Modifier::DIM));
    let again = [TopEffect::Follow(Some(id("asks")))];
    assert_eq!(model.update(sample(rows(3000, 0, 0))), again);
    // Output that fails again and again is not followed for ever while the node answers.
    let mut follows = 0;
    for _ in 0..100 {
        model.update(output(TailPart::Failed("cut".to_owned())));
        follows += model.update(sample(rows(3000, 0, 0))).len();
    }
    assert!((1..10).contains(&follows), "{follows}");
    // Output of a session that is not selected any more is not shown.
    press(&mut model, "j");
    model.update(output(TailPart::Earlier(b"late\n".to_vec())));
    assert!(!screen(&model, 80, 24).contains(&"late".to_owned()));
}

#[test]
fn the_screen_shows_sessions_and_the_output_of_the_selected_one() {
    let mut model = model();
    for part in [
        TailPart::Earlier(b"first\n".to_vec()),
        TailPart::Output(b"\x1b]0;title\x07second\x1b[2J".to_vec()),
        TailPart::Note("turn 2 ended: ok".to_owned()),
    ] {
        model.update(TopEvent::Output(id("asks"), part));
    }
    let wide = screen(&model, 80, 24);
    let expected = [
        "windlass 1.2.3  313.0M  1.7 CPU  3 sessions: 1 awaiting input, 1 busy, 1 idle",
        " SESSION STATE           MEMORY   CPU%     AGE TURNS QUEUED KIND",
        ">asks    awaiting input  312.0M   25.0     40s     3      1 python",
        " runs    busy              1.0M  150.0   1m10s     7      0 shell",
        " rests   idle                 -      -   1m30s     0      0 python",
        "── asks  awaiting input  turn 3  python  claude-code  /srv/asks ────────────────",
        "first",
        "second",
        "turn 2 ended: ok",
    ];
    assert_eq!(wide[..expected.len()], expected);
    assert!(wide[expected.len()..23].iter().all(String::is_empty), "{wide:?}");
    let keys = "q quit  ? help  i interrupt  K kill  a attach  s sort: attention  / filter";
    assert_eq!(wide[23], keys);

    let narrow = screen(&model, 40, 12);
    let expected = [
        "windlass 1.2.3  313.0M  1.7 CPU  3 sessi",
        " SESSION STATE           MEMORY   CPU%",
        ">asks    awaiting input  312.0M   25.0",
        " runs    busy              1.0M  150.0",
        " rests   idle                 -      -",
        "── asks  awaiting input  turn 3  python",
        "first",
        "second",
        "turn 2 ended: ok",
        "",
        "",
        "q quit  ? help  i interrupt  K kill  a a",
    ];
    assert_eq!(narrow, expected);
}

#[test]
fn any_size_and_any_text_can_be_drawn() {
    let hostile = "\x1b[2J\u{202e}\r\n日本";
    let mut rows = rows(3000, 0, 0);
    for at in 0..300 {
        let more = json!({"workspace": hostile, "kind": hostile, "environment": hostile});
        rows.push(row(&format!("s{at}"), "busy", at, &more));
    }
    let mut model = model();
    model.update(sample(rows));
    model.update(TopEvent::Told(hostile.to_owned()));
    for keys in ["", "\x1b[F", "/", "日\r", "\x1b", "K", "n?"] {
        press(&mut model, keys);
        for (width, height) in
            [(0, 0), (1, 1), (2, 2), (3, 3), (10, 4), (40, 7), (40, 8), (200, 60), (300, 200)]
        {
            let buffer = drawn(&model, PLAIN, width, height);
            let is_clean =
                |text: &str| !text.contains(|char: char| char.is_control() || char == '\u{202e}');
            assert!(buffer.content.iter().all(|cell| is_clean(cell.symbol())), "{width}x{height}");
            model.set_page(view::page(&model, height));
        }
    }
    let text = view::plain(&model, TopScope::Node, NOW_MS).join("");
    assert!(!text.contains(char::is_control));
    // A node can claim any figures.
    let huge = json!({"memory_bytes": u64::MAX});
    model.update(sample(vec![row("a", "busy", 1, &huge), row("b", "busy", 2, &huge)]));
    screen(&model, 80, 24);
}

#[test]
fn the_selected_session_is_on_the_screen_and_without_colours_there_are_none() {
    let mut model = model();
    let many = (0..100).map(|at| row(&format!("s{at:02}"), "idle", 1000 - at, &json!({})));
    model.update(sample(many.collect()));
    for keys in ["", "\x1b[F", "kkk", "\x1b[5~", "\x1b[H"] {
        press(&mut model, keys);
        let lines = screen(&model, 60, 20);
        let marked: Vec<&String> = lines.iter().filter(|line| line.starts_with('>')).collect();
        assert_eq!(marked.len(), 1, "{keys:?} {lines:?}");
        assert!(marked[0].starts_with(&format!(">{} ", selected(&model))), "{marked:?}");
    }
    let colours = |look| {
        let buffer = drawn(&model, look, 60, 20);
        buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(!colours(PLAIN));
    assert!(colours(TopLook { colours: TopColours::On, ..PLAIN }));
}

#[test]
fn a_session_that_only_the_directory_knows_has_name_node_and_state() {
    let lost = row("s1", "lost", 0, &json!({"node": "n2", "workspace": "", "kind": ""}));
    let mut model = TopModel::new();
    let node = TopNode { version: "1.2.3".to_owned(), ..TopNode::default() };
    model.update(TopEvent::Sampled(TopSample { node, sessions: vec![lost], is_cut: true }));
    let lines = view::plain(&model, TopScope::Fleet, NOW_MS);
    let expected = [
        "windlass 1.2.3  0B  0.0 CPU  the first 1 session: 1 lost",
        "SESSION NODE STATE MEMORY CPU% AGE TURNS QUEUED KIND CLIENT WORKSPACE",
        "s1      n2   lost       -    -   -     -      - -    -      -",
    ];
    assert_eq!(lines, expected);
}
