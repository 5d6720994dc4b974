//! Contract lines 90 to 96: agents as workers. A scripted agent (`engine.py`) misbehaves on request; the real ones are
//! in [`real`].
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod children;
mod load;
mod real;
mod scene;

use std::time::Duration;

use windlass_client::protocol::agent::{
    ActionKind, AgentEventKind, DecidedBy, PermissionPolicy, error_name,
};
use windlass_client::protocol::api::{CloseQuery, SubmitTurn, TurnInput, TurnState};
use windlass_client::protocol::{EventKind, Outcome, SessionId, TurnId};
use windlass_testkit::{PATIENCE, all_events, named_turn, processes, turn_ended};

use crate::scene::{AgentScene, SessionSettings, completed, shape};

/// How soon a waiting turn begins when the conversation is free.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn contract_90_turns_of_one_conversation_never_overlap_and_others_run_in_parallel() {
    let mut scene = AgentScene::new().await;
    let first = scene.session(SessionSettings::default()).await;
    scene.run(&first, "say hello").await;
    let token = scene.token(&first).await;
    let mut sessions = vec![first];
    for _ in 0..3 {
        let resume = Some(token.clone());
        sessions.push(scene.session(SessionSettings { resume, ..<_>::default() }).await);
    }
    // Each session has turns for the same conversation, and the node is killed twice meanwhile.
    let mut turns: Vec<(SessionId, TurnId)> = Vec::new();
    for round in 0..4 {
        for session in &sessions {
            let turn = named_turn(&format!("t{round}"), format!("say round {round}"));
            scene.client.submit_turn(session, &turn).await.unwrap();
            turns.push((session.clone(), turn.id.unwrap()));
        }
        if round == 1 || round == 3 {
            scene.node.restart().await.unwrap();
            scene.client = scene.node.client().await.unwrap();
        }
    }
    for (session, turn) in &turns {
        let ended = turn_ended(&scene.client, session, turn, 4 * PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Ok), "{session} {turn}: {ended:?}");
    }
    let log = scene.log();
    assert_eq!(log.iter().filter(|line| line.word == "begin").count(), turns.len() + 1);
    scene::check_no_overlap(&log, &token.id());

    // Two other conversations run at the same time.
    let (one, two) = (
        scene.session(SessionSettings::default()).await,
        scene.session(SessionSettings::default()).await,
    );
    let begun = |scene: &AgentScene| scene.log().iter().filter(|line| line.word == "begin").count();
    let before = begun(&scene);
    for session in [&one, &two] {
        scene.submit(session, "both", "wait go").await;
    }
    scene.until(|scene| begun(scene) == before + 2).await;
    scene.write("go", "");
    for session in [&one, &two] {
        let both = TurnId::chosen("both").unwrap();
        turn_ended(&scene.client, session, &both, PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn contract_91_who_learns_a_token_waits_behind_the_turn_that_announced_it() {
    let scene = AgentScene::new().await;
    let first = scene.session(SessionSettings::default()).await;
    let running = scene.submit(&first, "first", "wait go").await;
    let token = scene.started(&first).await;
    let second =
        scene.session(SessionSettings { resume: Some(token.clone()), ..<_>::default() }).await;
    let waiting = scene.submit(&second, "second", "say after").await;
    let runs = async {
        let look = async || scene.client.turn(&second, &waiting, <_>::default()).await.unwrap();
        while look().await.state != TurnState::Running {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    windlass_testkit::within(PATIENCE, runs).await;
    // A third session runs a whole turn meanwhile. So there was time to start a process for the second.
    let third = scene.session(SessionSettings::default()).await;
    scene.run(&third, "say hello").await;
    let starts = scene.log().iter().filter(|line| line.word == "start").count();
    assert_eq!(starts, 2, "the second session has started a process");
    let seen = scene.client.turn(&second, &waiting, <_>::default()).await.unwrap();
    assert_eq!(seen.state, TurnState::Running);
    scene.write("go", "");
    turn_ended(&scene.client, &first, &running, PATIENCE).await.unwrap();
    let freed = std::time::Instant::now();
    turn_ended(&scene.client, &second, &waiting, PATIENCE).await.unwrap();
    assert!(freed.elapsed() < SOON, "{:?}", freed.elapsed());
    scene::check_no_overlap(&scene.log(), &token.id());
}

#[tokio::test]
async fn contract_91_two_new_runs_that_report_one_id_start_one_after_the_other() {
    let scene = AgentScene::new().await;
    let same = SessionSettings { options: "--id same-id".to_owned(), ..<_>::default() };
    let (one, two) = (scene.session(same.clone()).await, scene.session(same).await);
    let first = scene.submit(&one, "first", "wait go").await;
    scene.started(&one).await;
    let second = scene.submit(&two, "second", "say after").await;
    // The second process is there and has told its id. Its turn does not begin.
    scene.until(|scene| scene.log().iter().filter(|line| line.word == "start").count() == 2).await;
    let third = scene.session(SessionSettings::default()).await;
    scene.run(&third, "say hello").await;
    assert!(scene.events(&two).await.is_empty(), "the second run has started");
    scene.write("go", "");
    turn_ended(&scene.client, &one, &first, PATIENCE).await.unwrap();
    turn_ended(&scene.client, &two, &second, PATIENCE).await.unwrap();
    scene::check_no_overlap(&scene.log(), "same-id");
}

#[tokio::test]
async fn contract_91_an_interrupted_wait_leaves_the_queue() {
    let scene = AgentScene::new().await;
    let first = scene.session(SessionSettings::default()).await;
    let running = scene.submit(&first, "first", "wait go").await;
    let resume = Some(scene.started(&first).await);
    let settings = SessionSettings { resume, ..<_>::default() };
    let (second, third) = (scene.session(settings.clone()).await, scene.session(settings).await);
    let given_up = scene.submit(&second, "given-up", "say never").await;
    let after = scene.submit(&third, "after", "say after").await;
    scene.client.interrupt_turn(&second, &given_up).await.unwrap();
    let ended = turn_ended(&scene.client, &second, &given_up, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Interrupted));
    scene.write("go", "");
    for (session, turn) in [(&first, &running), (&third, &after)] {
        let ended = turn_ended(&scene.client, session, turn, PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Ok));
    }
    let begun = scene.log().iter().filter(|line| line.word == "begin").count();
    assert_eq!(begun, 2, "a turn that was given up ran");
}

#[tokio::test]
async fn contract_92_events_keep_their_order_and_unknown_ones_are_passed_on() {
    let scene = AgentScene::new().await;
    let session = scene.session(SessionSettings::default()).await;
    let ended = scene.run(&session, "odd").await;
    assert_eq!(ended.outcome, Some(Outcome::Ok));
    let events = scene.events(&session).await;
    assert_eq!(
        shape(&events),
        "started action:unknown-brand_new_thing:started action:unknown-brand_new_thing:completed \
         notice notice action:u1:started action:u1:completed message usage completed"
    );
    let unknown = events.iter().find(|event| {
        matches!(&event.kind, AgentEventKind::Action { action: ActionKind::Unknown, .. })
            && !event.synthetic
    });
    let raw = unknown.unwrap().raw.as_ref().unwrap();
    assert_eq!(raw["params"]["update"]["text"], "?", "the engine's own message is passed on");
    let ended = scene.run(&session, "burst 500").await;
    let expected: String = (0..500).map(|number| format!("{number};")).collect();
    assert_eq!(ended.output.text.trim_end(), expected);
}

#[tokio::test]
async fn contract_93_every_turn_ends_once_with_an_answer_or_a_named_error() {
    let scene = AgentScene::new().await;
    for (options, prompt, name, words, answer) in [
        ("", "exit 3", error_name::EXITED, "acp:python3 ended in the turn (exit code 3)", "so far"),
        ("", "quiet", error_name::EXITED, "acp:python3 ended", "so far"),
        ("", "fail no luck", error_name::FAILED, "Internal error: no luck", ""),
        ("", "forever", error_name::STALLED, "acp:python3 made no progress for 2.5 s", ""),
        ("--die 7", "say x", error_name::EXITED, "exit code 7", ""),
        ("", "last", "", "", ""),
    ] {
        // An engine starts within this time also on a busy machine.
        let stall_ms = (name == error_name::STALLED).then_some(2_500);
        let options = options.to_owned();
        let settings = SessionSettings { options: options.clone(), stall_ms, ..<_>::default() };
        let session = scene.session(settings).await;
        let ended = scene.run(&session, prompt).await;
        let events = scene.events(&session).await;
        let (ok, said, error) = completed(&events);
        assert_eq!(ok, name.is_empty(), "{prompt}: {ended:?}");
        assert_eq!(said.trim_end(), answer, "{prompt}");
        let error = error.map(|error| (error.name, error.message)).unwrap_or_default();
        assert_eq!(error.0, name, "{prompt}: {}", error.1);
        assert!(error.1.contains(words), "{prompt}: {}", error.1);
        // What the engine wrote to standard error is in its log only.
        let told = serde_json::to_string(&events).unwrap();
        assert!(!told.contains("a secret on standard error"), "{prompt}: {told}");
        assert!(!ended.output.text.contains("a secret"), "{prompt}: {ended:?}");
        let turn_error = ended.error.map(|error| error.name).unwrap_or_default();
        assert_eq!(turn_error, name, "{prompt}");
        let all = all_events(&scene.client, &session).await;
        let ends = all.iter().filter(|item| matches!(item.event.kind, EventKind::TurnEnded { .. }));
        assert_eq!(ends.count(), 1, "{prompt}");
        if options.is_empty() {
            // The session goes on, with the same conversation.
            let again = scene.run(&session, "say again").await;
            assert_eq!(again.output.text.trim_end(), "again", "{prompt}: {again:?}");
        }
    }
}

#[tokio::test]
async fn contract_93_an_engine_that_hangs_is_stopped() {
    let scene = AgentScene::new().await;
    let session = scene.session(SessionSettings::default()).await;
    for stop in ["interrupt", "deadline"] {
        let deadline_ms = (stop == "deadline").then_some(1_000);
        let turn = SubmitTurn { deadline_ms, ..named_turn(stop, "hang") };
        scene.client.submit_turn(&session, &turn).await.unwrap();
        let id = turn.id.unwrap();
        if stop == "interrupt" {
            scene.started(&session).await;
            scene.client.interrupt_turn(&session, &id).await.unwrap();
        }
        let ended = turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
        let expected = if stop == "deadline" { Outcome::TimedOut } else { Outcome::Interrupted };
        assert_eq!(ended.outcome, Some(expected), "{ended:?}");
    }
    let (ok, _, error) = completed(&scene.events(&session).await);
    assert!(!ok && error.is_none(), "{error:?}");
    assert_eq!(scene.run(&session, "say again").await.output.text.trim_end(), "again");
}

#[tokio::test]
async fn contract_94_a_permission_is_decided_once_and_the_decision_is_in_the_journal() {
    let scene = AgentScene::new().await;
    for (policy, answer, option, by) in [
        (PermissionPolicy::Allow, None, Some("once"), DecidedBy::Policy),
        (PermissionPolicy::Refuse, None, Some("no"), DecidedBy::Policy),
        (PermissionPolicy::Ask, Some("p1 allow"), Some("once"), DecidedBy::Client),
        (PermissionPolicy::Ask, Some("p1 always"), Some("ever"), DecidedBy::Client),
        (PermissionPolicy::Ask, Some("p1 no"), Some("no"), DecidedBy::Client),
        (PermissionPolicy::Ask, None, Some("no"), DecidedBy::Deadline),
    ] {
        let deadline = answer.is_none().then_some(300);
        let settings = SessionSettings {
            permissions: Some(policy),
            permission_deadline_ms: deadline,
            ..<_>::default()
        };
        let session = scene.session(settings).await;
        let id = scene.submit(&session, "asks", "ask rm").await;
        if let Some(answer) = answer {
            let waiting = scene.waits_for_input(&session).await;
            assert!(waiting.contains("[p1]") && waiting.contains("rm"), "{waiting}");
            let input = TurnInput { text: Some(format!("{answer}\n")), ..<_>::default() };
            scene.client.send_input(&session, &id, &input).await.unwrap();
        }
        let told = scene.ended(&session, &id).await.output.text;
        let expected = option.map(|option| format!(r#""optionId": "{option}""#)).unwrap();
        assert!(told.contains(&expected), "{policy} {answer:?}: {told}");
        let decisions = scene.decisions(&session).await;
        let allowed = option != Some("no");
        assert_eq!(decisions, [("p1".to_owned(), option.map(str::to_owned), allowed, by)]);
    }
}

#[tokio::test]
async fn contract_94_an_open_permission_survives_the_node_and_ends_with_its_turn() {
    let mut scene = AgentScene::new().await;
    let permissions = Some(PermissionPolicy::Ask);
    let session = scene.session(SessionSettings { permissions, ..<_>::default() }).await;
    let id = scene.submit(&session, "asks", "ask2 rm").await;
    scene.waits_for_input(&session).await;
    scene.node.restart().await.unwrap();
    scene.client = scene.node.client().await.unwrap();
    let seen = scene.client.turn(&session, &id, <_>::default()).await.unwrap();
    assert_eq!(seen.state, TurnState::AwaitingInput);
    let input = TurnInput { text: Some("p2 allow\n".to_owned()), ..<_>::default() };
    scene.client.send_input(&session, &id, &input).await.unwrap();
    scene.until_decided(&session, 1).await;
    scene.client.interrupt_turn(&session, &id).await.unwrap();
    let ended = turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Interrupted));
    let decisions: Vec<_> = scene
        .decisions(&session)
        .await
        .into_iter()
        .map(|(id, _, allowed, by)| (id, allowed, by))
        .collect();
    assert_eq!(
        decisions,
        [
            ("p2".to_owned(), true, DecidedBy::Client),
            ("p1".to_owned(), false, DecidedBy::Interrupt)
        ]
    );
}

#[tokio::test]
async fn contract_94_an_answer_is_never_taken_for_another_question() {
    let scene = AgentScene::new().await;
    let permissions = Some(PermissionPolicy::Ask);
    let session = scene.session(SessionSettings { permissions, ..<_>::default() }).await;
    let id = scene.submit(&session, "asks", "then rm").await;
    scene.waits_for_input(&session).await;
    let say = async |answer: &str| {
        let input = TurnInput { text: Some(format!("{answer}\n")), ..<_>::default() };
        scene.client.send_input(&session, &id, &input).await.is_ok()
    };
    // The node takes answers only while something is asked, so an answer is repeated until it is taken.
    let say_until_taken = async |answer: &str| {
        let taken = async {
            while !say(answer).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        windlass_testkit::within(PATIENCE, taken).await;
    };
    // Two clients answer the first question, also without its id.
    say("allow").await;
    say_until_taken("p1 allow").await;
    say("p1 allow").await;
    say("allow").await;
    scene.until_decided(&session, 1).await;
    say_until_taken("p2 deny").await;
    scene.ended(&session, &id).await;
    let allowed: Vec<(String, bool)> = scene
        .decisions(&session)
        .await
        .into_iter()
        .map(|(id, _, allowed, _)| (id, allowed))
        .collect();
    assert_eq!(allowed, [("p1".to_owned(), true), ("p2".to_owned(), false)]);
}

#[tokio::test]
async fn contract_94_a_question_that_offers_no_refusal_is_refused() {
    let scene = AgentScene::new().await;
    let permissions = Some(PermissionPolicy::Refuse);
    let session = scene.session(SessionSettings { permissions, ..<_>::default() }).await;
    let ended = scene.run(&session, "only rm").await;
    assert!(ended.output.text.contains("cancelled"), "{ended:?}");
    assert_eq!(
        scene.decisions(&session).await,
        [("p1".to_owned(), None, false, DecidedBy::Policy)]
    );
}

#[tokio::test]
async fn contract_93_old_answers_and_planted_files_change_no_turn() {
    let scene = AgentScene::new().await;
    let session = scene.session(SessionSettings::default()).await;
    scene.run(&session, "say first").await;
    let ended = scene.run(&session, "again").await;
    assert_eq!((ended.outcome, ended.output.text.trim_end()), (Some(Outcome::Ok), "after"));
    let ended = scene.run(&session, "fifo").await;
    assert_eq!(ended.outcome, Some(Outcome::Error));
    let ended = scene.run(&session, "say still").await;
    assert_eq!(ended.output.text.trim_end(), "still", "{ended:?}");
}

/// Calls of the claim's name, by a session that is no agent: in two parts with different deadlines, and with a part
/// that is empty. They must cost the node nothing once they have failed.
const ODD_CLAIMS: &str = r#"
import json, os, struct, time
def send(header, body=b''):
    header = json.dumps({'kind': 'tool_call', 'turn': 1, **header}).encode()
    os.write(fd, struct.pack('>II', 4 + len(header) + len(body), len(header)) + header + body)
fd = 900  # where the Python worker keeps its protocol socket
name = 'windlass.agent_claim/x:y'
send({'call': 9001, 'name': name, 'deadline_ms': 200, 'more': True}, b'{')
send({'call': 9001, 'name': name, 'deadline_ms': 400}, b'}')
send({'call': 9002, 'name': 'windlass.list', 'deadline_ms': 200, 'more': True})
send({'call': 9002, 'name': 'windlass.list', 'deadline_ms': 400, 'more': True})
send({'call': 9003, 'name': name, 'deadline_ms': 200})
time.sleep(1)
"#;

#[tokio::test]
async fn contract_90_claims_of_other_sessions_are_refused_and_cost_the_node_nothing() {
    let scene = AgentScene::new().await;
    let session = scene.node.session(&scene.client).await.unwrap().id;
    scene.run(&session, ODD_CLAIMS).await;
    let all = all_events(&scene.client, &session).await;
    let calls = all.iter().filter(|item| matches!(item.event.kind, EventKind::ToolCall { .. }));
    // The keeper drops a part of a call that has failed already.
    let calls = calls.count();
    assert!((3..=5).contains(&calls), "{calls} parts of calls reached the node");
    let ticks = |pid: u32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks(scene.node.pid());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = ticks(scene.node.pid()) - before;
    assert!(used < 20, "the node used {used} ticks of CPU time in a second without work");
    let tokens = scene.node.dirs().state.join("agents/tokens");
    assert!(!tokens.exists() || std::fs::read_dir(tokens).unwrap().count() == 0);
}

#[tokio::test]
async fn contract_95_an_interrupted_or_closed_agent_leaves_no_process() {
    let scene = AgentScene::new().await;
    for end in ["interrupt", "close"] {
        let session = scene.session(SessionSettings::default()).await;
        let mark = format!("left-behind-{end}-{}", std::process::id());
        let prompt = format!("spawn {end}-{}", std::process::id());
        let id = scene.submit(&session, "spawns", &prompt).await;
        let left = || {
            let all = processes::all().into_iter();
            all.filter(|found| processes::mentions(found.pid, mark.as_bytes())).count()
        };
        scene.until(|_| left() >= 1).await;
        match end {
            "interrupt" => {
                scene.client.interrupt_turn(&session, &id).await.unwrap();
                turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
            }
            _ => {
                scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
            }
        }
        assert_eq!(left(), 0, "{end}");
    }
}

#[tokio::test]
async fn contract_96_a_killed_node_loses_no_event_of_an_agent() {
    let mut scene = AgentScene::new().await;
    let session = scene.session(SessionSettings::default()).await;
    const CHUNKS: usize = 3000;
    let id = scene.submit(&session, "burst", &format!("burst {CHUNKS}")).await;
    for _ in 0..10 {
        scene.node.restart().await.unwrap();
    }
    scene.client = scene.node.client().await.unwrap();
    let ended = turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Ok));
    let events = scene.events(&session).await;
    let chunks: Vec<String> = events
        .iter()
        .filter_map(|event| match &event.kind {
            AgentEventKind::Message { text, chunk: true, .. } => Some(text.clone()),
            _ => None,
        })
        .collect();
    let expected: Vec<String> = (0..CHUNKS).map(|number| format!("{number};")).collect();
    assert!(chunks == expected, "{} of {CHUNKS} events, or in another order", chunks.len());
    assert!(completed(&events).0);
    assert_eq!(scene.run(&session, "say again").await.output.text.trim_end(), "again");
}
