//! Every result reports the cost of its turn: wall and CPU time, peak memory, output bytes.

use windlass_client::protocol::event::Usage;
use windlass_testkit::{TestNode, run};

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
