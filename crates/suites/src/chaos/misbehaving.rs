//! Clients that misbehave: they vanish, send half of what they announced, send it late, or send what is
//! no request at all. The node stays up, refuses by name, and serves everybody else.

use std::time::Duration;

use serde_json::json;
use windlass_protocol::api::Turn;

use super::code;
use super::http_client::{HttpClient, code_of, refusal_fault};
use super::malformed::{self, AllowedAnswer};
use super::model::{SessionModel, TurnKind};
use super::random::Random;
use super::raw_http::{RawConnection, RawRequest};
use super::turns::{EarlyStop, Submission, read_output, submit, submit_as, wait_end};

/// How long a malformed request may be answered. The node gives a head that never ends this long, and more.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// How long a half-sent body is held open.
const HELD_OPEN: Duration = Duration::from_millis(100);

/// A submission whose connection is cut at some byte; then the same again, whole.
pub async fn cut(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let id = session.next_id();
    let mut program = code::brief(&id);
    let padding = *random.pick(&[0, 10_000, 200_000]);
    program.code.push_str(&format!("#{}\n", "x".repeat(padding)));
    let body = json!({"id": id, "code": session.code(&id, &program.code), "wait_ms": 0});
    let request = RawRequest::post(format!("{}/turns", session.path()), &body);
    let bytes = request.bytes(&http.door);
    let length = match random.chance(50) {
        true => bytes.len(),
        false => usize::try_from(random.below(bytes.len() as u64)).unwrap_or_default(),
    };
    // A node that is away cuts it earlier.
    if let Ok(mut connection) = RawConnection::open(&http.door).await {
        let _ = tokio::time::timeout(ANSWER_MAX, connection.write(&bytes[..length])).await;
    }
    submit_as(http, session, &id, Submission::plain(program)).await?;
    wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await
}

/// Half of a body, and then nothing: nobody else waits for the rest.
pub async fn half_body(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let mut held = Vec::new();
    for _ in 0..random.within(1, 8) {
        let Ok(mut connection) = RawConnection::open(&http.door).await else { break };
        let path = format!("{}/turns", session.path());
        let body = json!({"code": "print('never')"});
        let bytes = RawRequest::post(path, &body).bytes(&http.door);
        let _ = connection.write(&bytes[..bytes.len() - 5]).await;
        held.push(connection);
    }
    let id = session.next_id();
    submit_as(http, session, &id, Submission::plain(code::brief(&id)).waiting(1000)).await?;
    wait_end(http, session, &id, random).await?;
    tokio::time::sleep(HELD_OPEN).await;
    Ok(())
}

/// A request in pieces, with pauses between them, is one request.
pub async fn late_body(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nwhile True: time.sleep(0.01)\n";
    let program = code::TurnProgram { code: code.to_owned(), expected: code::Expected::Anything };
    let endless = Submission::plain(program).shaped(TurnKind::Interrupted);
    let id = submit(http, session, endless).await?;
    let request = RawRequest::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let mark = http.world.node.mark();
    let answered = in_pieces(http, &request, random).await;
    match answered {
        Ok((200, _)) => {}
        Ok((_, code)) if code.as_deref() == Some("turn_not_running") => {}
        Ok((_, code)) if code.as_deref() == Some("shutting_down") => {}
        Err(_) if http.world.node.since(mark) || http.world.scarcity.active() => {}
        other => http.violation("pieces", format!("{id}: interrupt in pieces: {other:?}")),
    }
    // The first may not have come through.
    http.send_with_retry(&request, 0).await?;
    wait_end(http, session, &id, random).await.map(drop)
}

async fn in_pieces(
    http: &HttpClient,
    request: &RawRequest,
    random: &mut Random,
) -> std::io::Result<(u16, Option<String>)> {
    let bytes = request.bytes(&http.door);
    let head = bytes.len() - request.body.len();
    let mut connection = RawConnection::open(&http.door).await?;
    connection.write(&bytes[..head]).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[2, 5, 30]))).await;
    connection.write(&bytes[head..]).await?;
    let answer = tokio::time::timeout(ANSWER_MAX, connection.answer()).await??;
    Ok((answer.status, code_of(&answer)))
}

/// A client that submits, asks to wait, and is gone: its turn goes on and can be read by its id.
pub async fn vanish(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let id = session.next_id();
    submit_as(http, session, &id, Submission::plain(code::slow(&id, 200))).await?;
    let request = RawRequest::get(format!("{}?wait_ms=30000", session.turn_path(&id)));
    if let Ok(mut connection) = RawConnection::open(&http.door).await {
        let _ = connection.write(&request.bytes(&http.door)).await;
    }
    http.cut();
    wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await
}

/// One row of the table of malformed requests.
pub async fn malformed(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let rows = malformed::rows(&session.id);
    let row = random.pick(&rows);
    http.world.ledger.count("malformed requests");
    let mark = http.world.node.mark();
    let bytes = row.bytes(&http.door);
    let exchange = async {
        let mut connection = RawConnection::open(&http.door).await?;
        // The node may close before it has read everything.
        let _ = connection.write(&bytes).await;
        connection.answer().await
    };
    let answer = match tokio::time::timeout(ANSWER_MAX, exchange).await {
        Ok(Ok(answer)) => answer,
        // Bytes that are no HTTP may be answered by closing.
        Ok(Err(_)) => return Ok(()),
        Err(_) if row.answers == AllowedAnswer::MayWait || http.world.node.since(mark) => {
            return Ok(());
        }
        Err(_) => {
            http.violation(
                "hang",
                format!("malformed {:?}: no answer in {ANSWER_MAX:?}", row.name),
            );
            return Ok(());
        }
    };
    let by_name = row.answers != AllowedAnswer::NoHttp;
    if by_name && let Some(fault) = refusal_fault(&http.world, &answer) {
        http.violation("refusal", format!("malformed {:?}: {fault}: {}", row.name, answer.shown()));
    }
    // A row may be a turn after all: it must end like any other, and is not waited for here.
    if row.answers == AllowedAnswer::Turn && answer.status == 200 {
        let turn: Turn = http.read("a turn of the table", &answer).ok_or(EarlyStop::GivenUp)?;
        http.world.ledger.count(&format!("malformed turns {:?}", turn.state));
    }
    Ok(())
}
