//! The contract lines on workers of every kind, against a real node, keeper and interpreter. Each test runs
//! for each kind: `cargo xtask contract --worker r` selects the tests of one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod language;

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpListener;
use windlass_client::Client;
use windlass_client::protocol::api::{CloseQuery, EventItem, TurnInput, TurnQuery, TurnState};
use windlass_client::protocol::event::{PrewarmSource, StartedBy};
use windlass_client::protocol::{EventKind, Outcome, Seq, SessionId, Stream, TurnId};
use windlass_testkit::{
    PATIENCE, TestToolHost, all_events, processes, run, run_ok, turn, turn_ended, wait_for_event,
    within,
};

use language::Language;

macro_rules! for_each_kind {
    ($($module:ident: $language:expr,)*) => {$(
        mod $module {
            use super::language;

            #[tokio::test]
            async fn contract_80_state_stays_over_turns_and_a_killed_node() {
                super::state_stays(&$language).await;
            }

            #[tokio::test]
            async fn contract_80_a_deadline_ends_a_turn() {
                super::deadline_ends(&$language).await;
            }

            #[tokio::test]
            async fn contract_80_a_closed_session_leaves_no_process() {
                super::leaves_nothing(&$language).await;
            }

            #[tokio::test]
            async fn the_start_is_measured() {
                super::start_is_measured(&$language).await;
            }

            #[tokio::test]
            async fn contract_82_output_arrives_in_order_and_apart() {
                super::in_order(&$language).await;
            }

            #[tokio::test]
            async fn contract_83_an_interrupt_ends_everything_and_keeps_the_state() {
                super::interrupts(&$language).await;
            }

            #[tokio::test]
            async fn contract_83_an_interrupt_ends_a_wait_for_input() {
                super::interrupts_input(&$language).await;
            }

            #[tokio::test]
            async fn contract_87_a_session_reaches_nothing_outside_its_policy() {
                super::reaches_nothing(&$language).await;
            }

            #[tokio::test]
            async fn contract_89_a_host_tool_answers() {
                super::tool_answers(&$language).await;
            }
        }
    )*};
}

for_each_kind! {
    python: language::PYTHON,
    shell: language::SHELL,
    r: language::R,
    node: language::JAVASCRIPT,
    pyodide: language::PYODIDE,
    jupyter: language::JUPYTER,
}

async fn state_stays(language: &Language) {
    let Some((mut node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    let ticking = client.submit_turn(&session, &turn(language.ticks)).await.unwrap();
    let printed = |kind: &EventKind| matches!(kind, EventKind::Output { .. });
    let seen = |item: &EventItem| printed(&item.event.kind);
    wait_for_event(&client, &session, Seq(0), PATIENCE, seen).await.unwrap();
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    let ended = turn_ended(&client, &session, &ticking.id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Ok), "{ended:?}");
    let ticks: Vec<String> = ended.output.text.lines().map(|line| line.trim().to_owned()).collect();
    let expected: Vec<String> = (0..20).map(|number| format!("tick {number}")).collect();
    assert_eq!(ticks, expected);
    assert_eq!(run_ok(&client, &session, language.get).await, "42\n");
}

async fn start_is_measured(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    let session = client.session(&session).await.unwrap();
    let figures = session.start_figures.unwrap();
    let is_cached = figures.prewarm.how == PrewarmSource::Cached;
    assert_eq!(is_cached, session.started_by != Some(StartedBy::Exec), "{figures:?}");
    assert_eq!(figures.runtime_load_ms.is_some(), figures.prewarm.ms.is_some());
    assert!(figures.runtime_load_ms.is_some(), "{figures:?}");
    let kind = session.kind.split(':').next().unwrap_or_default();
    let metrics = client.metrics().await.unwrap();
    let counted = format!("windlass_worker_startup_seconds_count{{worker=\"{kind}\"");
    assert!(metrics.contains(&counted), "{metrics}");
}

async fn deadline_ends(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    let mut late = turn(language.endless[0]);
    late.deadline_ms = Some(500);
    let ended = within(PATIENCE, client.run_turn(&session, late)).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::TimedOut), "{ended:?}");
    assert_eq!(run_ok(&client, &session, language.get).await, "42\n");
}

async fn leaves_nothing(language: &Language) {
    let Some((node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    let busy = client.submit_turn(&session, &turn(language.endless[2])).await.unwrap();
    begun(&client, &session).await;
    client.close_session(&session, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    let lost = turn_ended(&client, &session, &busy.id, PATIENCE).await.unwrap();
    assert_ne!(lost.outcome, Some(Outcome::Ok));
    for pid in node.session_processes().await.unwrap() {
        assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
    }
}

async fn in_order(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    let ran = run(&client, &session, language.ordered).await;
    assert_eq!(ran.outcome, Some(Outcome::Ok), "{ran:?}");
    let events = all_events(&client, &session).await;
    let mut told = Vec::new();
    for item in &events {
        match &item.event.kind {
            EventKind::Output { stream, background: false } => {
                let text = item.text.clone().unwrap_or_default();
                match told.last_mut() {
                    Some((last, all)) if *last == name_of(*stream) => *all = format!("{all}{text}"),
                    _ => told.push((name_of(*stream), text)),
                }
            }
            EventKind::Display { more: false, .. } => told.push(("display", String::new())),
            _ => {}
        }
    }
    let text = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told: Vec<(&str, String)> =
        told.into_iter().map(|(stream, all)| (stream, text(&all))).collect();
    // What was printed before a display comes before it. What is printed after it may overtake it.
    let display = told.iter().position(|(stream, _)| *stream == "display");
    assert_eq!(display.is_some(), language.displays, "{told:?}");
    if let Some(at) = display {
        assert!(told[..at].iter().any(|(_, all)| all.starts_with("one")), "{told:?}");
    }
    let printed = told.iter().filter(|(stream, _)| *stream == "stdout").map(|(_, all)| &**all);
    assert_eq!(printed.collect::<Vec<_>>().join(" "), "one two");
    let told: Vec<_> = told.into_iter().filter(|(stream, _)| *stream == "result").collect();
    let mut expected = Vec::new();
    if language.values {
        let value = if language.worker == "r" { "[1] 42" } else { "42" };
        expected.push((name_of(Stream::Result), value.to_owned()));
    }
    assert_eq!(told, expected);
    let failed = run(&client, &session, language.fails).await;
    assert_eq!(failed.outcome, Some(Outcome::Error), "{failed:?}");
    assert!(failed.output.text.contains("broken"), "{failed:?}");
    assert!(failed.error.is_some(), "{failed:?}");
}

async fn interrupts(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    for endless in language.endless {
        let busy = client.submit_turn(&session, &turn(*endless)).await.unwrap();
        begun_after(&client, &session, &busy.id).await;
        let asked = Instant::now();
        client.interrupt_turn(&session, &busy.id).await.unwrap();
        let ended = turn_ended(&client, &session, &busy.id, PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Interrupted), "{endless}: {ended:?}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{endless}: {:?}", asked.elapsed());
        assert_eq!(run_ok(&client, &session, language.get).await, "42\n", "{endless}");
    }
}

async fn interrupts_input(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    run_ok(&client, &session, language.set).await;
    let asking = run(&client, &session, language.asks).await;
    assert_eq!(asking.state, TurnState::AwaitingInput, "{asking:?}");
    client.interrupt_turn(&session, &asking.id).await.unwrap();
    let ended = turn_ended(&client, &session, &asking.id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Interrupted), "{ended:?}");
    let asking = run(&client, &session, language.asks).await;
    assert_eq!(asking.state, TurnState::AwaitingInput, "{asking:?}");
    let input = TurnInput { text: Some("ada\n".to_owned()), ..TurnInput::default() };
    let answered = client.answer_turn(&session, &asking.id, &input);
    let answered = within(PATIENCE, answered).await.unwrap();
    assert_eq!(answered.outcome, Some(Outcome::Ok), "{answered:?}");
    assert!(answered.output.text.trim_end().ends_with("hello ada"), "{answered:?}");
    assert_eq!(run_ok(&client, &session, language.get).await, "42\n");
}

async fn reaches_nothing(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = language.reaches.replace("PORT", &port.to_string());
    let said = run_ok(&client, &session, &code).await;
    assert!(!said.is_empty() && said.lines().all(|line| line == "refused"), "{said:?}");
}

async fn tool_answers(language: &Language) {
    let Some((_node, client, session)) = language.start().await else { return };
    let host = TestToolHost::offer(&client, &session, &["find"], |call| async move {
        match call.arguments["query"] == "x" {
            true => Ok(json!({"hits": 7})),
            false => Err(call.error("ValueError", "wrong query")),
        }
    });
    let _host = host.await.unwrap();
    let said = run_ok(&client, &session, language.calls).await;
    assert_eq!(said.trim(), "7");
}

fn name_of(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Result => "result",
        Stream::Traceback => "traceback",
    }
}

/// Waits until the session's newest turn has printed `begun`.
async fn begun(client: &Client, session: &SessionId) {
    let says = |item: &EventItem| {
        item.text.as_deref().is_some_and(|text| text.contains("begun"))
            && matches!(item.event.kind, EventKind::Output { .. })
    };
    wait_for_event(client, session, Seq(0), PATIENCE, says).await.unwrap();
}

/// Waits until this turn has printed.
async fn begun_after(client: &Client, session: &SessionId, turn: &TurnId) {
    let number = client.turn(session, turn, TurnQuery::default()).await.unwrap().number;
    let says = |item: &EventItem| {
        item.event.turn == Some(number) && matches!(item.event.kind, EventKind::Output { .. })
    };
    wait_for_event(client, session, Seq(0), PATIENCE, says).await.unwrap();
}
