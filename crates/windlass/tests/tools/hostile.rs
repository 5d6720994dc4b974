//! Workers that misuse host tools: they harm at most their own session, with a named error.

use serde_json::json;
use windlass_client::Client;
use windlass_client::protocol::api::Turn;
use windlass_client::protocol::event::EventKind;
use windlass_client::protocol::{ErrorCode, Outcome, Seq, SessionId};
use windlass_testkit::{
    PATIENCE, TestNode, TestToolCall, TestToolHost, odd_worker, run, turn, turn_ended,
    wait_for_event, within,
};

use super::start_session;

/// Sends what the turn tells it to. `answers` collects the replies up to the last requested one.
const CALLER: &str = r#"
def call(turn, number, name="echo", body=b'{"value": 1}', **fields):
    return frame("tool_call", body, turn=turn, call=number, name=name, **fields)

def answers(count):
    bodies, done = {}, []
    while len(done) < count:
        header, body = read_frame()
        if header["kind"] == "tool_result":
            number = header["call"]
            bodies[number] = bodies.get(number, b"") + body if header["ok"] else body
            if not header.get("more"):
                done.append((number, header["ok"], len(bodies[number])))
    return done

ready()
for turn, code in turns():
    exec(code)
    send(idle(turn))
"#;

async fn start(node: &TestNode, client: &Client) -> SessionId {
    let mut create = odd_worker(node.base(), "caller", CALLER).unwrap();
    // Long enough for a slow machine to transfer 120 MB.
    create.interrupt_grace_ms = Some(30_000);
    client.create_session(&create).await.unwrap().session.id
}

async fn offer(client: &Client, session: &SessionId) -> TestToolHost {
    let answer = |call: TestToolCall| async move {
        match call.name.as_str() {
            "large" => Ok(json!("x".repeat(10_000_000))),
            "echo" => Ok(call.arguments["value"].clone()),
            _ => {
                call.cancelled().await;
                Ok(json!(null))
            }
        }
    };
    TestToolHost::offer(client, session, &["echo", "large", "never"], answer).await.unwrap()
}

fn broke_the_protocol(turn: &Turn) -> bool {
    let code = turn.error.as_ref().and_then(|error| error.code);
    turn.outcome == Some(Outcome::Lost) && code == Some(ErrorCode::ProtocolError)
}

#[tokio::test]
async fn a_worker_that_breaks_the_rules_of_calls_ends_its_session_alone() {
    let (node, client, bystander) = start_session().await;
    for (what, code) in [
        ("a number twice", "send(call(turn, 1, 'never'), call(turn, 1))"),
        ("a name without end", "send(call(turn, 1, 'n' * 1000))"),
        ("a call without end", "while True: send(call(turn, 1, body=b'x' * 190_000, more=True))"),
        (
            "calls without end",
            "for n in range(5000): send(call(turn, n, more=True))\nanswers(5000)",
        ),
    ] {
        let session = start(&node, &client).await;
        let _host = offer(&client, &session).await;
        let turn = run(&client, &session, code).await;
        assert!(broke_the_protocol(&turn), "{what}: {turn:?}");
    }
    assert_eq!(windlass_testkit::run_ok(&client, &bystander, "6*7").await, "42\n");
}

#[tokio::test]
async fn one_call_too_many_is_refused_and_the_others_continue() {
    let (node, client, _) = start_session().await;
    let session = start(&node, &client).await;
    let _host = offer(&client, &session).await;
    let code = "
send(*[call(turn, n, 'never') for n in range(1024)], call(turn, 2000))
refused = answers(1)
send(*[frame('tool_cancel', turn=turn, call=n) for n in range(1024)], call(turn, 2001))
send(out(turn, str((refused[0][:2], answers(1)))))";
    let turn = run(&client, &session, code).await;
    assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
    assert_eq!(turn.output.text, "((2000, False), [(2001, True, 1)])");
}

#[tokio::test]
async fn the_nodes_own_tools_take_short_arguments_only() {
    let (node, client, _) = start_session().await;
    let session = start(&node, &client).await;
    let code = "
send(call(turn, 1, 'windlass.list', b'{' + b' ' * 150_000 + b'}'), call(turn, 2, 'windlass.list', b'{}'))
send(out(turn, str(sorted((number, ok) for number, ok, _ in answers(2)))))";
    let turn = run(&client, &session, code).await;
    assert_eq!(turn.output.text, "[(1, False), (2, True)]", "{turn:?}");
}

#[tokio::test]
async fn answers_that_a_worker_does_not_read_are_bounded_and_an_interrupt_overtakes_them() {
    let (node, client, _) = start_session().await;
    let session = start(&node, &client).await;
    let _host = offer(&client, &session).await;
    // Twelve replies of 10 MB are requested and not read until the interrupt has arrived.
    let code = "
signal.signal(signal.SIGINT, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
send(*[call(turn, n, 'large') for n in range(12)])
signal.sigwait({signal.SIGINT})
kinds = []
while 'interrupt' not in kinds:
    kinds.append(read_frame()[0]['kind'])
done = answers(12)
send(out(turn, json.dumps([len(kinds), sum(not ok for _, ok, _ in done), len(done)])))";
    let pending = client.submit_turn(&session, &turn(code)).await.unwrap();
    let mut over = 0;
    let all_answered = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| {
        over += usize::from(matches!(item.event.kind, EventKind::ToolEnded { .. }));
        over == 12
    });
    all_answered.await.unwrap();
    within(PATIENCE, client.interrupt_turn(&session, &pending.id)).await.unwrap();
    let ended = turn_ended(&client, &session, &pending.id, PATIENCE).await.unwrap();
    let (before, failed, answered): (usize, usize, usize) =
        serde_json::from_str(&ended.output.text).unwrap_or_else(|_| panic!("{ended:?}"));
    // A socket buffer holds a frame or two of this size.
    assert!(before <= 4, "{before} frames came before the interrupt");
    // The keeper holds 64 MiB. Further replies failed by name, and every call was answered.
    assert!(failed > 0, "{failed} of {answered} failed");
    assert_eq!(answered, 12);
}
