//! `fork_live`: forks a session that holds a table of 100 MB. The time is from the request to the twin's
//! answer with the length of its table. The baseline is the time to copy 100 MB of memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use windlass_protocol::api::CreateSession;
use windlass_protocol::{Outcome, SessionId};

use super::BenchPlan;
use super::figure::{Figure, millis};
use super::node::{AT_ONCE, block_on, program, turn};
use crate::start::{JsonConnection, MeasuredNode, PythonEnvironment};

const ROUNDS: usize = 40;

/// The most forks of one session.
const FORKS_PER_SESSION: usize = 8;

/// The first fork does not count: caches may be cold.
const WARM_UP_ROUNDS: usize = 1;

/// Ten columns of eight bytes: 100 MB.
const ROWS: usize = 1_250_000;
const BYTES: usize = ROWS * 10 * 8;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let environment = PythonEnvironment::with_pandas()?;
        let node = MeasuredNode::start(program()?, plan.start, environment).await?;
        let mut session = with_table(&node).await?;
        let mut connection = node.connection().await?;
        let mut times = Vec::new();
        for round in 0..WARM_UP_ROUNDS + plan.rounds(ROUNDS) {
            if round > 0 && round % FORKS_PER_SESSION == 0 {
                node.client.close_session(&session, AT_ONCE).await?;
                session = with_table(&node).await?;
            }
            let Some(took) = fork(&node, &mut connection, &session).await? else {
                eprintln!("skipped: fork_live: this node cannot fork a live session");
                return Ok(Vec::new());
            };
            if round >= WARM_UP_ROUNDS {
                times.push(took);
            }
        }
        let copies: Vec<Duration> = (0..plan.rounds(ROUNDS)).map(|_| copy()).collect();
        Ok(vec![Figure::of_times("fork_live", &times).beside(&millis(&copies))])
    })
}

async fn with_table(node: &MeasuredNode) -> Result<SessionId> {
    let code = format!("import numpy, pandas\ndf = pandas.DataFrame(numpy.ones(({ROWS}, 10)))");
    let wanted = CreateSession {
        interpreter: Some(node.interpreter()),
        turn: Some(turn(&code)),
        ..CreateSession::default()
    };
    let created = node.client.create_session(&wanted).await?;
    let made = created.turn.context("no first turn")?;
    ensure!(made.outcome == Some(Outcome::Ok), "the code failed: {}", made.output.text);
    Ok(created.session.id)
}

/// The time of one fork. `None` if the node has no such endpoint. Closes the twin.
async fn fork(
    node: &MeasuredNode,
    connection: &mut JsonConnection,
    session: &SessionId,
) -> Result<Option<Duration>> {
    let started = Instant::now();
    let (status, said) =
        connection.ask("POST", &format!("/v1/sessions/{session}/fork"), &json!({})).await?;
    if status == 404 {
        return Ok(None);
    }
    let twin = twin_in(status, &said)?;
    let answer = node.client.submit_turn(&twin, &turn("len(df)")).await?;
    let took = started.elapsed();
    ensure!(
        answer.output.text == format!("{ROWS}\n"),
        "the twin answered {:?}",
        answer.output.text
    );
    node.client.close_session(&twin, AT_ONCE).await?;
    Ok(Some(took))
}

fn twin_in(status: u16, said: &Value) -> Result<SessionId> {
    ensure!((200..300).contains(&status), "the node refused the fork with {status}: {said}");
    let id = said["session"]["id"].clone();
    serde_json::from_value(id)
        .with_context(|| format!("the answer to the fork has no session id: {said}"))
}

fn copy() -> Duration {
    let table = vec![1_u8; BYTES];
    let started = Instant::now();
    std::hint::black_box(table.clone());
    started.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_is_named_by_the_answer() {
        let said = json!({"session": {"id": "s1"}, "not_carried": []});
        assert_eq!(twin_in(201, &said).unwrap().as_str(), "s1");
        assert!(twin_in(409, &said).is_err());
        assert!(twin_in(201, &json!({})).is_err());
    }
}
