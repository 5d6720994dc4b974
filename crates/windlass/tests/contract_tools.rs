//! The contract lines on host tools: what code that calls tools may rely on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_client::Client;
use windlass_client::protocol::api::Turn;
use windlass_client::protocol::event::EventKind;
use windlass_client::protocol::host::CancelReason;
use windlass_client::protocol::{ErrorCode, Outcome, Seq, SessionId};
use windlass_testkit::{
    Load, PATIENCE, TestNode, TestToolCall, TestToolHost, ToolResult, run, run_ok, turn,
    turn_ended, wait_for_event, within,
};

/// The time that "at once" may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn start() -> (TestNode, Client, SessionId) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    (node, client, session)
}

/// The tools of these tests.
async fn offer(client: &Client, session: &SessionId) -> TestToolHost {
    TestToolHost::offer(client, session, &["echo", "wait", "fail", "never"], answer).await.unwrap()
}

async fn answer(call: TestToolCall) -> ToolResult {
    match call.name.as_str() {
        // Returns its argument.
        "echo" => Ok(call.arguments["value"].clone()),
        // Returns its argument some time later.
        "wait" => {
            let wait = Duration::from_millis(call.arguments["ms"].as_u64().unwrap_or_default());
            tokio::time::sleep(wait).await;
            Ok(json!("waited"))
        }
        "fail" => Err(call.error("ValueError", "no such thing as 7")),
        // Waits until it is cancelled, and returns then.
        "never" => {
            call.cancelled().await;
            Ok(json!("late"))
        }
        other => unreachable!("{other} is not offered"),
    }
}

fn error_of(turn: &Turn) -> (&str, &str) {
    let error = turn.error.as_ref().unwrap();
    (&error.name, &error.message)
}

#[tokio::test]
async fn contract_06_a_tool_that_submits_a_turn_to_its_caller_is_refused_at_once() {
    let (node, client, session) = start().await;
    let other = node.session(&client).await.unwrap().id;
    let sessions = [session.clone(), other.clone()];
    // `nest` submits a turn to the session of that number, waits for it, and returns its outcome.
    let nest = {
        let (client, sessions) = (client.clone(), sessions.clone());
        move |call: TestToolCall| {
            let client = client.within(call.within());
            let to = sessions[call.arguments["to"].as_u64().unwrap() as usize].clone();
            let code = call.arguments["code"].as_str().unwrap().to_owned();
            async move {
                Ok(match client.run_turn(&to, turn(code)).await {
                    Ok(turn) => json!(turn.output.text),
                    Err(error) => json!(error.code()),
                })
            }
        }
    };
    let mut hosts = Vec::new();
    for session in &sessions {
        hosts.push(TestToolHost::offer(&client, session, &["nest"], nest.clone()).await.unwrap());
    }
    let started = Instant::now();
    let direct = run_ok(&client, &session, "tools.nest(to=0, code='1')").await;
    assert_eq!(direct, "'would_deadlock'\n");
    // Calling into another session works. A call from there back into the first one is refused as well.
    let there = "print(tools.nest(to=1, code='6*7'), tools.nest(to=1, code='tools.nest(to=0, code=\"1\")'))";
    let there = run_ok(&client, &session, there).await;
    assert_eq!(there, "42\n 'would_deadlock'\n\n");
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    // The session no longer waits for the tool, so the same turn is accepted.
    assert_eq!(run_ok(&client, &session, "6*7").await, "42\n");
}

/// Rounds of line 10; a variable overrides it.
fn rounds() -> usize {
    let said = std::env::var("WINDLASS_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    said.unwrap_or(20)
}

#[tokio::test]
async fn contract_10_950_kb_pass_12_in_a_row_and_12_at_once_each_way_under_load() {
    let (_node, client, session) = start().await;
    let _host = offer(&client, &session).await;
    let _load = Load::start().unwrap();
    let code = "
import asyncio
text = 'x' * 950_000
def check(answers):
    assert all(answer == text for answer in answers), [len(answer) for answer in answers]
";
    run_ok(&client, &session, code).await;
    let in_a_row = "check([tools.echo(value=text) for _ in range(12)])";
    let at_once = "check(await asyncio.gather(*[tools.echo(value=text) for _ in range(12)]))";
    let mut slowest = Duration::ZERO;
    for round in 0..rounds() {
        for code in [in_a_row, at_once] {
            let started = Instant::now();
            run_ok(&client, &session, code).await;
            slowest = slowest.max(started.elapsed());
            assert!(slowest < Duration::from_secs(10), "round {round}: {slowest:?}");
        }
    }
    println!("the slowest of {} rounds: {slowest:?}", rounds());
}

#[tokio::test]
async fn contract_15_late_answers_to_orphaned_calls_do_not_touch_the_next_turn() {
    let (_node, client, session) = start().await;
    let host = offer(&client, &session).await;
    let orphans = "
import asyncio
orphans = [asyncio.ensure_future(tools.never(number=number)) for number in range(11)]
await asyncio.sleep(0)
# The host takes its calls in order, so it has the others when it answers this one.
await tools.echo(value=0)
print('left')";
    assert_eq!(run_ok(&client, &session, orphans).await, "left\n");
    // Each call is cancelled and is answered nevertheless, while the next turn makes as many calls.
    let next = "
answers = await asyncio.gather(*[tools.echo(value=number) for number in range(11)])
assert answers == list(range(11)), answers
assert all(orphan.cancelled() for orphan in orphans)
assert [tools.echo.blocking(value=str(number)) for number in range(11)] == [str(n) for n in range(11)]
print('mine')";
    assert_eq!(run_ok(&client, &session, next).await, "mine\n");
    let cancels = within(PATIENCE, host.cancels(11)).await;
    assert_eq!(cancels.len(), 11);
    assert_eq!(run_ok(&client, &session, "tools.echo(value='still')").await, "'still'\n");
}

#[tokio::test]
async fn contract_21_an_interrupt_overtakes_a_pending_tool_call() {
    let (_node, client, session) = start().await;
    let host = offer(&client, &session).await;
    run_ok(&client, &session, "x = 7").await;
    for code in ["tools.never()", "await tools.never()", THREADS] {
        let pending = client.submit_turn(&session, &turn(code)).await.unwrap();
        within(PATIENCE, host.called("never")).await;
        within(AT_ONCE, client.interrupt_turn(&session, &pending.id)).await.unwrap();
        let stopped = turn_ended(&client, &session, &pending.id, AT_ONCE).await.unwrap();
        assert_eq!(stopped.outcome, Some(Outcome::Interrupted), "{code}: {stopped:?}");
        assert_eq!(run_ok(&client, &session, "x").await, "7\n");
    }
}

/// The main thread waits for a thread that waits for a tool.
const THREADS: &str = "
import threading
thread = threading.Thread(target=tools.never, daemon=True)
thread.start()
thread.join()";

#[tokio::test]
async fn contract_60_sync_awaited_and_38_at_once_give_typed_results() {
    let (_node, client, session) = start().await;
    let _host = offer(&client, &session).await;
    let values = json!([null, true, false, 0, -7, 2.5, "", "text é\u{0}\u{1F600}", [], [1, [2]],
        {}, {"a": {"b": null}}, 9_007_199_254_740_993_i64]);
    let code = format!(
        "
import asyncio, json
values = json.loads({:?})
def same(a, b):
    return type(a) is type(b) and a == b
for value in values:
    assert same(tools.echo(value=value), value), value
    assert same(await tools.echo(value=value), value), value
at_once = await asyncio.gather(*[tools.echo(value=values[n % len(values)]) for n in range(38)])
assert all(same(answer, values[n % len(values)]) for n, answer in enumerate(at_once)), at_once
print('typed')",
        values.to_string()
    );
    // The first loop is in async code, so the plain call is reported as blocking.
    let code = code.replace("same(tools.echo(value", "same(tools.echo.blocking(value");
    assert_eq!(run_ok(&client, &session, &code).await, "typed\n");
    let plain = "assert all(same(tools.echo(value=value), value) for value in values)\nprint('so')";
    assert_eq!(run_ok(&client, &session, plain).await, "so\n");
    let threads = "
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(38) as pool:
    print(sum(pool.map(lambda n: tools.echo(value=n), range(38))))";
    assert_eq!(run_ok(&client, &session, threads).await, "703\n");
}

#[tokio::test]
async fn contract_61_tools_that_wait_wait_together() {
    let (_node, client, session) = start().await;
    let _host = offer(&client, &session).await;
    let gathered = "
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
started = time.monotonic()
assert await asyncio.gather(*[tools.wait(ms=1000) for _ in range(38)]) == ['waited'] * 38
print(time.monotonic() - started)";
    let threaded = "
started = time.monotonic()
with ThreadPoolExecutor(38) as pool:
    assert list(pool.map(lambda _: tools.wait(ms=1000), range(38))) == ['waited'] * 38
print(time.monotonic() - started)";
    for code in [gathered, threaded] {
        let took: f64 = run_ok(&client, &session, code).await.trim().parse().unwrap();
        assert!((1.0..2.0).contains(&took), "38 waits of one second took {took} s");
    }
}

#[tokio::test]
async fn contract_62_a_tool_that_raises_raises_in_the_code_with_its_message() {
    let (_node, client, session) = start().await;
    let _host = offer(&client, &session).await;
    let failed = run(&client, &session, "print('before')\ntools.fail()").await;
    assert_eq!(failed.outcome, Some(Outcome::Error));
    assert_eq!(error_of(&failed), ("ToolError", "no such thing as 7"));
    assert!(failed.output.text.starts_with("before\n"), "{}", failed.output.text);
    let caught = "
try:
    tools.fail()
except tools.ToolError as error:
    print(error, error.type, error.code)
print(tools.echo(value='later calls work'))";
    let caught = run_ok(&client, &session, caught).await;
    assert_eq!(caught, "no such thing as 7 ValueError tool_failed\nlater calls work\n");
}

#[tokio::test]
async fn contract_63_a_call_past_its_deadline_raises_and_its_late_answer_is_dropped() {
    let (_node, client, session) = start().await;
    let host = offer(&client, &session).await;
    let late = run(&client, &session, "x = 7\ntools(deadline=1.0).never()").await;
    assert_eq!(late.outcome, Some(Outcome::Error));
    assert_eq!(error_of(&late).0, "ToolDeadlinePassed");
    let cancels = within(PATIENCE, host.cancels(1)).await;
    assert_eq!(cancels, [CancelReason::Deadline]);
    let caught = "
try:
    tools(deadline=1.0).never()
except TimeoutError as error:
    print(error.code)
print([tools.echo(value=n) for n in range(3)], x)";
    let caught = run_ok(&client, &session, caught).await;
    assert_eq!(caught, "tool_deadline_passed\n[0, 1, 2] 7\n");
    // Both late replies have arrived and changed nothing.
    within(PATIENCE, host.cancels(2)).await;
    assert_eq!(run_ok(&client, &session, "tools.echo(value=x)").await, "7\n");
}

#[tokio::test]
async fn contract_64_a_host_that_vanishes_fails_its_calls_at_once() {
    let (_node, client, session) = start().await;
    for code in ["tools.never()", "await tools.never()", "tools.never(value='x' * 5_000_000)"] {
        let host = offer(&client, &session).await;
        let pending = client.submit_turn(&session, &turn(code)).await.unwrap();
        within(PATIENCE, host.called("never")).await;
        drop(host);
        let failed = turn_ended(&client, &session, &pending.id, AT_ONCE).await.unwrap();
        assert_eq!(failed.outcome, Some(Outcome::Error), "{code}");
        assert_eq!(error_of(&failed).0, "ToolHostGone", "{code}");
    }
    // Its tools are gone with it, and the tools of the next host are available.
    let gone = run(&client, &session, "tools.echo(value=1)").await;
    assert_eq!(error_of(&gone).0, "ToolNotFound");
    let _host = offer(&client, &session).await;
    assert_eq!(run_ok(&client, &session, "tools.echo(value=1)").await, "1\n");
}

#[tokio::test]
async fn contract_65_an_interrupt_while_tools_are_pending_tells_their_host() {
    let (_node, client, session) = start().await;
    let host = offer(&client, &session).await;
    let code = "
import asyncio
await asyncio.gather(*[tools.never(number=number) for number in range(5)])";
    let pending = client.submit_turn(&session, &turn(code)).await.unwrap();
    for _ in 0..5 {
        within(PATIENCE, host.called("never")).await;
    }
    within(AT_ONCE, client.interrupt_turn(&session, &pending.id)).await.unwrap();
    let stopped = turn_ended(&client, &session, &pending.id, AT_ONCE).await.unwrap();
    assert_eq!(stopped.outcome, Some(Outcome::Interrupted), "{stopped:?}");
    assert_eq!(within(AT_ONCE, host.cancels(5)).await, [CancelReason::Interrupted; 5]);
    let ended = |kind: &EventKind| {
        matches!(kind, EventKind::ToolEnded { code: Some(ErrorCode::ToolCancelled), .. })
    };
    let told = wait_for_event(&client, &session, Seq(0), PATIENCE, |item| ended(&item.event.kind));
    told.await.unwrap();
}
