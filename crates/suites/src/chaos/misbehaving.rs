//! Clients that misbehave: they disconnect, send half of a body, send it late, or send bytes that are no
//! request. The node must stay up, refuse with an error code, and serve all other clients.

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

/// How long the answer to a malformed request may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// How long a connection with half of a body stays open.
const HELD_OPEN: Duration = Duration::from_millis(100);

/// Cuts the connection of a submission at a random byte, and sends the same submission again.
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
    let bytes = request.bytes(&http.endpoint);
    let length = match random.chance(50) {
        true => bytes.len(),
        false => usize::try_from(random.below(bytes.len() as u64)).unwrap_or_default(),
    };
    // The connection fails if the node is down. The submission below is sent anyway.
    if let Ok(mut connection) = RawConnection::open(&http.endpoint).await {
        let _ = tokio::time::timeout(ANSWER_MAX, connection.write(&bytes[..length])).await;
    }
    submit_as(http, session, &id, Submission::plain(program)).await?;
    wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await
}

/// Sends half of a body on several connections. Other requests must not wait for the rest.
pub async fn half_body(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let mut held = Vec::new();
    for _ in 0..random.within(1, 8) {
        let Ok(mut connection) = RawConnection::open(&http.endpoint).await else { break };
        let path = format!("{}/turns", session.path());
        let body = json!({"code": "print('never')"});
        let bytes = RawRequest::post(path, &body).bytes(&http.endpoint);
        let _ = connection.write(&bytes[..bytes.len() - 5]).await;
        held.push(connection);
    }
    let id = session.next_id();
    submit_as(http, session, &id, Submission::plain(code::brief(&id)).waiting(1000)).await?;
    wait_end(http, session, &id, random).await?;
    tokio::time::sleep(HELD_OPEN).await;
    Ok(())
}

/// Sends a request in two pieces with a pause between them. The node must treat it as one request.
pub async fn late_body(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let code = "import time\nwhile True: time.sleep(0.01)\n";
    let program = code::TurnProgram { code: code.to_owned(), expected: code::Expected::Anything };
    let endless = Submission::plain(program).of_kind(TurnKind::Interrupted);
    let id = submit(http, session, endless).await?;
    let request = RawRequest::post(format!("{}/interrupt", session.turn_path(&id)), &json!({}));
    let mark = http.world.node.mark();
    let answered = in_pieces(http, &request, random).await;
    match answered {
        Ok((200, _)) => {}
        Ok((_, code)) if code.as_deref() == Some("turn_not_running") => {}
        Ok((_, code)) if code.as_deref() == Some("shutting_down") => {}
        Ok((_, code))
            if code.as_deref() == Some("session_ended") && session.may_lose(&http.world) => {}
        Err(_) if http.world.node.since(mark) || http.world.scarcity.active() => {}
        other => http.violation("pieces", format!("{id}: interrupt in pieces: {other:?}")),
    }
    // The first request may not have arrived.
    http.send_with_retry(&request, 0).await?;
    wait_end(http, session, &id, random).await.map(drop)
}

async fn in_pieces(
    http: &HttpClient,
    request: &RawRequest,
    random: &mut Random,
) -> std::io::Result<(u16, Option<String>)> {
    let bytes = request.bytes(&http.endpoint);
    let head = bytes.len() - request.body.len();
    let mut connection = RawConnection::open(&http.endpoint).await?;
    connection.write(&bytes[..head]).await?;
    tokio::time::sleep(Duration::from_millis(*random.pick(&[2, 5, 30]))).await;
    connection.write(&bytes[head..]).await?;
    let answer = tokio::time::timeout(ANSWER_MAX, connection.answer()).await??;
    Ok((answer.status, code_of(&answer)))
}

/// Submits a turn, asks to wait for it, and disconnects. The turn must go on and be readable by its id.
pub async fn vanish(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let id = session.next_id();
    submit_as(http, session, &id, Submission::plain(code::slow(&id, 200))).await?;
    let request = RawRequest::get(format!("{}?wait_ms=30000", session.turn_path(&id)));
    if let Ok(mut connection) = RawConnection::open(&http.endpoint).await {
        let _ = connection.write(&request.bytes(&http.endpoint)).await;
    }
    http.cut();
    wait_end(http, session, &id, random).await?;
    read_output(http, session, &id, random).await
}

/// Sends one request of the table of malformed requests.
pub async fn malformed(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let rows = malformed::rows(&session.id);
    let row = random.pick(&rows);
    http.world.ledger.count("malformed requests");
    let mark = http.world.node.mark();
    let bytes = row.bytes(&http.endpoint);
    let exchange = async {
        let mut connection = RawConnection::open(&http.endpoint).await?;
        // The write may fail: the node may close the connection before it has read everything.
        let _ = connection.write(&bytes).await;
        connection.answer().await
    };
    let answer = match tokio::time::timeout(ANSWER_MAX, exchange).await {
        Ok(Ok(answer)) => answer,
        // The node may close the connection without an answer.
        Ok(Err(_)) => return Ok(()),
        Err(_) if row.allowed == AllowedAnswer::MayWait || http.world.node.since(mark) => {
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
    let needs_code = row.allowed != AllowedAnswer::NotHttp;
    if needs_code && let Some(fault) = refusal_fault(&http.world, &answer) {
        http.violation("refusal", format!("malformed {:?}: {fault}: {}", row.name, answer.shown()));
    }
    // Some of the requests start a turn. This client does not wait for it.
    if row.allowed == AllowedAnswer::Turn && answer.status == 200 {
        let turn: Turn =
            http.read("a turn of a malformed request", &answer).ok_or(EarlyStop::GivenUp)?;
        http.world.ledger.count(&format!("malformed turns {:?}", turn.state));
    }
    Ok(())
}
