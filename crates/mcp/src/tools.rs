//! The tools. Each sends a few requests to the node and builds an answer. A fault becomes a tool
//! error, so that the model can read it. Only an unknown tool is a protocol error.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputResponses,
};
use serde_json::{Value, json};
use windlass_client::WhichSessions;
use windlass_protocol::api::{CloseQuery, OutputQuery, SearchQuery, Session, TurnQuery};
use windlass_protocol::{ErrorCode, SessionId, TurnId, TurnNo};

use crate::arguments::{self, output_bytes, wait_ms};
use crate::call::ClientCall;
use crate::door::Door;
use crate::fault::Fault;
use crate::follow::{self, ReplyLimits, TurnFollower};
use crate::input::{self, InputQuestion};
use crate::output::{OutputStart, cut_character};
use crate::schema;
use crate::sessions::{self, Intent, SessionRequest};

/// How long `interrupt` waits for the turn to end.
const STOP_WAIT_MS: u64 = 5_000;

/// Most sessions in one list.
const LIST_MAX: usize = 100;

/// Most lines that one search of `read_output` returns.
const MATCHES_MAX: usize = 200;

/// Carries out a tool call.
pub(crate) async fn call(
    door: &Door,
    call: &ClientCall,
    request: CallToolRequestParams,
) -> Result<CallToolResponse, ErrorData> {
    let CallToolRequestParams { name, arguments, input_responses, request_state, .. } = request;
    let done = match &*name {
        // The client repeats the call with the answer to a question. The code runs already.
        schema::RUN | schema::CONTINUE if request_state.is_some() => {
            let question = request_state.as_deref().and_then(InputQuestion::parse);
            let question = question.ok_or_else(|| bad_state("it is damaged"))?;
            let argument = |name| arguments.as_ref().and_then(|all| all.get(name));
            let wait = argument("wait_seconds").and_then(Value::as_f64);
            let start = match &*name {
                schema::RUN => OutputStart::Begin,
                _ => output_start(argument("from").and_then(Value::as_u64)),
            };
            let limits = reply_limits(wait, None, start);
            go_on(door, call, question, &input_responses.unwrap_or_default(), limits).await
        }
        schema::RUN => run(door, call, arguments::read(arguments)).await,
        schema::CONTINUE => continue_turn(door, call, arguments::read(arguments)).await,
        schema::INTERRUPT => interrupt(door, call, arguments::read(arguments)).await,
        schema::RESET => reset(door, call, arguments::read(arguments)).await,
        schema::SESSIONS => list(door, call, arguments::read(arguments)).await,
        schema::READ_OUTPUT => read_output(door, call, arguments::read(arguments)).await,
        other => {
            return Err(ErrorData::invalid_params(format!("there is no tool {other:?}"), None));
        }
    };
    Ok(done.unwrap_or_else(|fault| fault.into_result().into()))
}

async fn run(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::RunArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments = arguments?;
    let (name, language) = (arguments.session.as_deref(), arguments.language.as_deref());
    let request = SessionRequest { name, language, packages: &arguments.packages };
    let limits = reply_limits(arguments.wait_seconds, arguments.max_tokens, OutputStart::Begin);
    follow::run(door, call, request, arguments.code, limits).await
}

async fn continue_turn(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::ContinueArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments = arguments?;
    let client = door.client().await?;
    let intent = if arguments.input.is_some() { Intent::Work } else { Intent::Read };
    let session = sessions::find(door, call, arguments.session.as_deref(), intent).await?;
    let turn = match &arguments.turn {
        Some(turn) => turn_id(turn)?,
        None => newest_turn(door, &session).await?,
    };
    let start = output_start(arguments.from);
    let limits = reply_limits(arguments.wait_seconds, arguments.max_tokens, start);
    let follow = TurnFollower::new(call, client, session.clone(), turn.clone(), limits);
    let Some(line) = &arguments.input else {
        let now = follow.now().await?;
        return follow.see_through(now).await;
    };
    input::send_from_model(client, &session, &turn, line).await?;
    follow.wait_and_see_through().await
}

/// A call that the client repeats with its user's answer.
async fn go_on(
    door: &Door,
    call: &ClientCall,
    question: InputQuestion,
    responses: &InputResponses,
    limits: ReplyLimits,
) -> Result<CallToolResponse, Fault> {
    let InputQuestion { session, turn, number } = question;
    sessions::check_scope(call, &session, Intent::Work)?;
    let client = door.client().await?;
    let follow = TurnFollower::new(call, client, session, turn, limits);
    follow.answered(number, responses).await
}

fn bad_state(why: &str) -> ErrorData {
    ErrorData::invalid_params(format!("requestState is invalid: {why}"), None)
}

async fn interrupt(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::InterruptArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments = arguments?;
    let client = door.client().await?;
    let session = sessions::find(door, call, arguments.session.as_deref(), Intent::Work).await?;
    let turn = match client.interrupt(&session).await {
        Ok(turn) => turn.id,
        Err(error) if error.api_code() == Some(ErrorCode::TurnNotRunning) => {
            let said = json!({"session": session, "state": "idle", "output": ""});
            return Ok(answer(format!("session {session} runs no code"), said));
        }
        Err(error) => return Err(error.into()),
    };
    let limits = reply_limits(None, None, output_start(arguments.from));
    let query = TurnQuery {
        wait_ms: STOP_WAIT_MS,
        output_bytes_max: Some(limits.output_bytes),
        ..TurnQuery::default()
    };
    let turn = client.turn(&session, &turn, query).await?;
    let mut result = follow::reply_to(call, client, turn, limits, None).await?.into_result();
    // An interrupted turn is the expected result here.
    result.is_error = Some(false);
    Ok(result.into())
}

async fn reset(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::ResetArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments = arguments?;
    let client = door.client().await?;
    let session = sessions::find(door, call, arguments.session.as_deref(), Intent::Work).await?;
    if arguments.end {
        client.close_session(&session, CloseQuery::default()).await?;
        let said = json!({"session": session, "state": "ended"});
        return Ok(answer(format!("session {session} has ended"), said));
    }
    client.reset_session(&session).await?;
    let said = json!({"session": session, "state": "fresh"});
    Ok(answer(format!("session {session} has a fresh interpreter"), said))
}

async fn list(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::SessionsArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments::SessionsArguments {} = arguments?;
    let mut sessions = door.client().await?.sessions(WhichSessions::Live).await?.sessions;
    sessions.retain(|one| sessions::check_scope(call, &one.id, Intent::Read).is_ok());
    let shown = &sessions[..sessions.len().min(LIST_MAX)];
    let mut text: Vec<String> = shown.iter().map(line).collect();
    if shown.len() < sessions.len() {
        text.push(format!("and {} more", sessions.len() - shown.len()));
    }
    if text.is_empty() {
        text.push("no session is alive".to_owned());
    }
    let structured: Vec<Value> = shown.iter().map(structured).collect();
    Ok(answer(text.join("\n"), json!({"sessions": structured})))
}

fn line(session: &Session) -> String {
    let (id, state, turns) = (&session.id, state(session), session.turns);
    let unit = if turns == 1 { "turn" } else { "turns" };
    format!("{id}  {state}  {turns} {unit}  {}", session.workspace)
}

fn structured(session: &Session) -> Value {
    let mut shown = json!({
        "session": session.id,
        "state": state(session),
        "language": session.worker,
        "workspace": session.workspace,
        "turns": session.turns,
    });
    if let Some(turn) = &session.turn {
        shown["running"] = json!(turn);
    }
    shown
}

fn state(session: &Session) -> String {
    let state = serde_json::to_value(session.state).unwrap_or_default();
    state.as_str().unwrap_or_default().to_owned()
}

async fn read_output(
    door: &Door,
    call: &ClientCall,
    arguments: Result<arguments::ReadOutputArguments, Fault>,
) -> Result<CallToolResponse, Fault> {
    let arguments = arguments?;
    let client = door.client().await?;
    let session = sessions::find(door, call, arguments.session.as_deref(), Intent::Read).await?;
    let bytes = output_bytes(arguments.max_tokens) as u64;
    if let Some(query) = arguments.search {
        let query = SearchQuery { query, turn: arguments.turn, limit: Some(MATCHES_MAX) };
        let found = client.search_output(&session, &query).await?;
        let mut lines = String::new();
        let mut more = found.more;
        for one in &found.matches {
            let line = format!("{}: {}\n", one.offset, one.line);
            if (lines.len() + line.len()) as u64 > bytes {
                more = true;
                break;
            }
            lines.push_str(&line);
        }
        let text = if lines.is_empty() { "(no such line)".to_owned() } else { lines.clone() };
        return Ok(answer(text, json!({"session": session, "output": lines, "more": more})));
    }
    let from = arguments.from;
    let query = match arguments.tail {
        Some(tail) => OutputQuery {
            turn: arguments.turn,
            tail: Some(tail.min(bytes)),
            ..OutputQuery::default()
        },
        None => OutputQuery {
            turn: arguments.turn,
            from,
            to: Some(from.unwrap_or(0).saturating_add(bytes)),
            ..OutputQuery::default()
        },
    };
    let part = client.output(&session, &query).await?;
    let more = part.next < part.total;
    // The next call begins with a character that this one has only the start of.
    let cut = if more { cut_character(&part.bytes) } else { 0 };
    // A part that is nothing else is shown: the rest of the character never comes if it was dropped.
    let held = if cut < part.bytes.len() { cut } else { 0 };
    let next = part.next - held as u64;
    let shown = &part.bytes[..part.bytes.len() - held];
    let output = String::from_utf8_lossy(shown).into_owned();
    let mut text = if output.is_empty() { "(no output there)".to_owned() } else { output.clone() };
    if more {
        text.push_str(&format!("\n[bytes {} to {} of {}]", part.from, next, part.total));
    }
    let said = json!({
        "session": session, "output": output, "from": part.from, "next": next,
        "total": part.total, "more": more,
    });
    Ok(answer(text, said))
}

/// The running turn of a session, or its last one.
async fn newest_turn(door: &Door, session: &SessionId) -> Result<TurnId, Fault> {
    let about = door.client().await?.session(session).await?;
    match about.turn {
        Some(turn) => Ok(turn),
        None if about.turns > 0 => Ok(TurnId::from_number(TurnNo(about.turns))),
        None => Err(Fault::NothingRan(session.clone())),
    }
}

fn turn_id(text: &str) -> Result<TurnId, Fault> {
    TurnId::parse(text).map_err(|error| Fault::Arguments(error.to_string()))
}

fn reply_limits(
    wait_seconds: Option<f64>,
    max_tokens: Option<usize>,
    output_start: OutputStart,
) -> ReplyLimits {
    let wait = Duration::from_millis(wait_ms(wait_seconds));
    ReplyLimits { wait, output_bytes: output_bytes(max_tokens), output_start }
}

fn output_start(from: Option<u64>) -> OutputStart {
    from.map_or(OutputStart::Unseen, OutputStart::At)
}

fn answer(text: String, structured: Value) -> CallToolResponse {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(structured);
    result.into()
}
