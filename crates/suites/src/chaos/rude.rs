//! Clients that misbehave: they vanish, send half of what they announced, send it late, or send what is
//! no request at all. The node stays up, refuses by name, and serves everybody else.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::api::Turn;

use super::asker::{Asker, code_of, refusal_fault};
use super::code;
use super::http::{Request, Wire};
use super::malformed::{self, Answers};
use super::model::{SessionModel, Shape};
use super::random::Random;
use super::turns::{Stop, Submission, read_output, submit, submit_as, wait_end};

/// How long a malformed request may be answered. The node gives a head that never ends this long, and more.
const RUDE_MAX: Duration = Duration::from_secs(20);

/// How long a half-sent body is held open.
const HELD_OPEN: Duration = Duration::from_millis(100);

/// A submission whose connection is cut at some byte; then the same again, whole.
pub async fn cut(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let id = session.next_id();
    let mut program = code::brief(&id);
    let padding = *random.pick(&[0, 10_000, 200_000]);
    program.code.push_str(&format!("#{}\n", "x".repeat(padding)));
    let body = json!({"id": id, "code": session.code(&id, &program.code), "wait_ms": 0});
    let request = Request::post(format!("{}/turns", session.path()), &body);
    let bytes = request.bytes(&asker.door);
    let length = match random.chance(50) {
        true => bytes.len(),
        false => usize::try_from(random.below(bytes.len() as u64)).unwrap_or_default(),
    };
    // A node that is away cuts it earlier.
    if let Ok(mut wire) = Wire::open(&asker.door).await {
        let _ = tokio::time::timeout(RUDE_MAX, wire.write(&bytes[..length])).await;
    }
    submit_as(asker, session, &id, Submission::plain(program)).await?;
    wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await
}

/// Half of a body, and then nothing: nobody else waits for the rest.
pub async fn half_body(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let mut held = Vec::new();
    for _ in 0..random.within(1, 8) {
        let Ok(mut wire) = Wire::open(&asker.door).await else { break };
        let path = format!("{}/turns", session.path());
        let body = json!({"code": "print('never')"});
        let bytes = Request::post(path, &body).bytes(&asker.door);
        let _ = wire.write(&bytes[..bytes.len() - 5]).await;
        held.push(wire);
    }
    let id = session.next_id();
    submit_as(asker, session, &id, Submission::plain(code::brief(&id)).waiting(1000)).await?;
    wait_end(asker, session, &id, random).await?;
    tokio::time::sleep(HELD_OPEN).await;
    Ok(())
}

/// A request in pieces, with pauses between them, is one request.
pub async fn late_body(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let code = "import time\nwhile True: time.sleep(0.01)\n";
    let program = code::Program { code: code.to_owned(), expected: code::Expected::Anything };
    let endless = Submission::plain(program).shaped(Shape::Interrupted);
    let id = submit(asker, session, endless).await?;
    let request = Request::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let mark = asker.world.node.mark();
    let answered = in_pieces(asker, &request, random).await;
    match answered {
        Ok((200, _)) => {}
        Ok((_, code)) if code.as_deref() == Some("turn_not_running") => {}
        Ok((_, code)) if code.as_deref() == Some("shutting_down") => {}
        Err(_) if asker.world.node.since(mark) || asker.world.scarcity.active() => {}
        other => asker.violation("pieces", format!("{id}: interrupt in pieces: {other:?}")),
    }
    // The first may not have come through.
    asker.patient(&request, 0).await?;
    wait_end(asker, session, &id, random).await.map(drop)
}

async fn in_pieces(
    asker: &Asker,
    request: &Request,
    random: &mut Random,
) -> std::io::Result<(u16, Option<String>)> {
    let bytes = request.bytes(&asker.door);
    let head = bytes.len() - request.body.len();
    let mut wire = Wire::open(&asker.door).await?;
    wire.write(&bytes[..head]).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[2, 5, 30]))).await;
    wire.write(&bytes[head..]).await?;
    let answer = tokio::time::timeout(RUDE_MAX, wire.answer()).await??;
    Ok((answer.status, code_of(&answer)))
}

/// A client that submits, asks to wait, and is gone: its turn goes on and can be read by its id.
pub async fn vanish(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let id = session.next_id();
    submit_as(asker, session, &id, Submission::plain(code::slow(&id, 200))).await?;
    let request = Request::get(format!("{}?wait_ms=30000", session.turn_path(&id)));
    if let Ok(mut wire) = Wire::open(&asker.door).await {
        let _ = wire.write(&request.bytes(&asker.door)).await;
    }
    asker.cut();
    wait_end(asker, session, &id, random).await?;
    read_output(asker, session, &id, random).await
}

/// One row of the table of malformed requests.
pub async fn malformed(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let rows = malformed::rows(&session.id);
    let row = random.pick(&rows);
    asker.world.ledger.count("malformed requests");
    let mark = asker.world.node.mark();
    let bytes = row.bytes(&asker.door);
    let exchange = async {
        let mut wire = Wire::open(&asker.door).await?;
        // The node may close before it has read everything.
        let _ = wire.write(&bytes).await;
        wire.answer().await
    };
    let answer = match tokio::time::timeout(RUDE_MAX, exchange).await {
        Ok(Ok(answer)) => answer,
        // Bytes that are no HTTP may be answered by closing.
        Ok(Err(_)) => return Ok(()),
        Err(_) if row.answers == Answers::MayWait || asker.world.node.since(mark) => return Ok(()),
        Err(_) => {
            asker.violation("hang", format!("malformed {:?}: no answer in {RUDE_MAX:?}", row.name));
            return Ok(());
        }
    };
    let by_name = row.answers != Answers::NoHttp;
    if by_name && let Some(fault) = refusal_fault(&asker.world, &answer) {
        asker
            .violation("refusal", format!("malformed {:?}: {fault}: {}", row.name, answer.shown()));
    }
    // A row may be a turn after all: it must end like any other, and is not waited for here.
    if row.answers == Answers::Turn && answer.status == 200 {
        let turn: Turn = asker.read("a turn of the table", &answer).ok_or(Stop::GivenUp)?;
        asker.world.ledger.count(&format!("malformed turns {:?}", turn.state));
    }
    Ok(())
}
