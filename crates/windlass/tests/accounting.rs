//! Every result reports the cost of its turn: wall and CPU time, peak memory, output bytes. The overview tells what
//! sessions use now.

use windlass_client::protocol::api::{SessionState, SessionsQuery, SubmitTurn};
use windlass_client::protocol::event::Usage;
use windlass_client::protocol::{ClientName, SessionId, TurnNo};
use windlass_testkit::{PATIENCE, TestNode, run, run_ok, skip, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");
const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn a_result_reports_the_cost_of_its_turn() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let cost = async |code: &str| -> Usage { run(&client, &session, code).await.usage.unwrap() };

    let brief = cost("print('four')").await;
    assert_eq!(brief.output_bytes, 5);
    assert!(brief.wall_ms > 0.0 && brief.cpu_ms > 0.0, "{brief:?}");
    assert!(brief.peak_rss_bytes > 4 * MIB, "an interpreter takes more: {brief:?}");

    let spinning =
        "import time\nend = time.process_time() + 0.05\nwhile time.process_time() < end: pass";
    let own = cost(spinning).await;
    assert!(own.cpu_ms >= 49.0 && own.wall_ms >= 49.0, "{own:?}");

    let child = cost(&format!(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spinning:?}])"
    ))
    .await;
    assert!(child.cpu_ms >= 40.0, "the child's time is missing: {child:?}");

    let sleeping = cost("time.sleep(0.05)").await;
    assert!(sleeping.wall_ms >= 50.0 && sleeping.cpu_ms < 25.0, "{sleeping:?}");

    let large = cost("block = b'x' * (64 << 20); del block; time.sleep(0.003)").await;
    assert!(large.peak_rss_bytes >= 64 * MIB, "{large:?}");
}

#[tokio::test]
async fn the_overview_tells_what_sessions_use() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let name = ClientName::parse("a test").unwrap();
    let client = node.client().await.unwrap().named(&name);
    let large = node.session(&client).await.unwrap().id;
    let small = node.session(&client).await.unwrap().id;
    let code = "import time\nblock = b'x' * (64 << 20)\nend = time.process_time() + 0.3\n\
                while time.process_time() < end: pass\nprint('four')";
    assert_eq!(run_ok(&client, &large, code).await, "four\n");
    let rows = client.overview(&SessionsQuery::default()).await.unwrap().sessions;
    assert_eq!(rows.len(), 2, "{rows:?}");
    let row = |session: &SessionId| rows.iter().find(|row| row.id == *session).unwrap();
    let (large_row, small_row) = (row(&large), row(&small));
    assert_eq!((large_row.turns, large_row.output_bytes, large_row.turn), (1, 5, None));
    assert_eq!((small_row.turns, small_row.waiting, small_row.waits_for_input), (0, 0, false));
    assert_eq!((large_row.client.as_ref(), &*large_row.kind), (Some(&name), "python"));
    assert_eq!(client.session(&large).await.unwrap().client, Some(name));
    let Some(memory_bytes) = large_row.memory_bytes else {
        assert_eq!(large_row.measured_at_ms.is_some(), large_row.cpu_ms.is_some());
        return skip("no cgroup of this machine counts the memory of sessions");
    };
    assert!(memory_bytes >= 64 * MIB, "{large_row:?}");
    assert!(small_row.memory_bytes.is_some_and(|bytes| bytes < memory_bytes), "{rows:?}");
    assert!(large_row.measured_at_ms.is_some(), "{large_row:?}");
    // Cgroups of version 1 count CPU time only on some machines.
    assert!(large_row.cpu_ms.is_none_or(|cpu_ms| cpu_ms >= 290), "{large_row:?}");
}

#[tokio::test]
async fn the_overview_has_the_sessions_that_wait_for_input_and_comes_in_pages() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let asks = node.session(&client).await.unwrap().id;
    let other = node.session(&client).await.unwrap().id;
    run_ok(&client, &asks, "x = 1").await;
    let ask = SubmitTurn { code: "input()".to_owned(), wait_ms: 30_000, ..SubmitTurn::default() };
    within(PATIENCE, client.submit_turn(&asks, &ask)).await.unwrap();
    let waiting =
        SessionsQuery { state: Some(SessionState::AwaitingInput), ..SessionsQuery::default() };
    let rows = client.overview(&waiting).await.unwrap().sessions;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0].id, rows[0].turn, rows[0].turns), (&asks, Some(TurnNo(2)), 2));
    assert!(rows[0].waits_for_input);
    let mut expected = [asks, other];
    expected.sort();
    let (mut found, mut query) =
        (Vec::new(), SessionsQuery { limit: Some(1), ..SessionsQuery::default() });
    loop {
        let page = client.overview(&query).await.unwrap();
        assert!(page.sessions.len() <= 1, "{page:?}");
        found.extend(page.sessions.into_iter().map(|row| row.id));
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
}
