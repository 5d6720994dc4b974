//! Requests about turns: submit, get, interrupt, give input. A reply may wait for the turn, and the output in
//! a reply is limited by a budget.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use bytes::Bytes;
use tokio::sync::oneshot;
use windlass_audit::AuditDetail;
use windlass_client::timers::TimerPool;
use windlass_journal::{EventReader, OutputRange};
use windlass_protocol::api::{
    ApiError, StreamView, SubmitTurn, Turn, TurnInput, TurnQuery, TurnState,
};
use windlass_protocol::host::{WITHIN_HEADER, Within};
use windlass_protocol::limits::{
    DEADLINE_MS_MAX, OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX, TURN_CONTEXT_BYTES_MAX, WAIT_MS_MAX,
};
use windlass_protocol::turn::TurnContext;
use windlass_protocol::{ErrorCode, SessionId, Stream, TurnId, TurnNo};

use super::App;
use super::body::{Asked, InPath, JsonBody, message};
use super::read_log::ReadLog;
use super::replicated;
use super::reply::{Answer, bad_request, internal, session_id, turn_id};
use super::sessions::live;
use super::transfers::trace_parent;
use crate::audit::AuditNote;
use crate::bounds::{Bounds, BudgetShare};
use crate::failure::Failure;
use crate::session::output_ends::{OutputExcerpt, StreamExcerpt, end_bytes};
use crate::session::turns::Snapshot;
use crate::session::{InputRequest, Request, SessionHandle, SubmitRequest, TurnRef, Until};
use windlass_telemetry::TraceParent;
use windlass_tools::within::OpenWithin;

/// A checked request to submit a turn.
pub(super) struct Wish {
    id: Option<TurnId>,
    code: Bytes,
    wait: Duration,
    deadline_ms: Option<u64>,
    context: Option<Box<TurnContext>>,
    within: Option<Within>,
    trace: Option<TraceParent>,
    budget: Budgets,
    /// The long-connection share of a reply that waits.
    place: Option<BudgetShare>,
    note: AuditNote,
}

/// A submitted turn whose reply is pending.
pub(super) struct Pending {
    answer: oneshot::Receiver<Result<Snapshot, Failure>>,
    number: Arc<OnceLock<TurnNo>>,
    wait: Duration,
    budget: Budgets,
    _place: Option<BudgetShare>,
}

impl Wish {
    /// `headers` are the headers of the request.
    pub fn check(
        submit: SubmitTurn,
        headers: &HeaderMap,
        bounds: &Bounds,
        note: AuditNote,
    ) -> Answer<Self> {
        let id = submit
            .id
            .map(|id| TurnId::chosen(id.as_str()))
            .transpose()
            .map_err(|error| bad_request(error.to_string()))?;
        if submit.deadline_ms.is_some_and(|deadline| deadline > DEADLINE_MS_MAX) {
            return Err(bad_request(format!("deadline_ms is at most {DEADLINE_MS_MAX}")));
        }
        let (wait, place) = wait(submit.wait_ms, bounds);
        let budget = Budgets {
            output: budget(submit.output_bytes_max),
            stdout: stream_budget(submit.stdout_bytes_max),
            stderr: stream_budget(submit.stderr_bytes_max),
        };
        let code = message(submit.code, &bounds.input)?;
        note.add("code", AuditDetail::Code(code.clone()));
        Ok(Self {
            id,
            code,
            wait,
            deadline_ms: submit.deadline_ms,
            context: submit.context.map(checked_context).transpose()?,
            within: within(headers)?,
            trace: None,
            budget,
            place,
            note,
        })
    }

    /// The turn is under the client's span.
    pub fn under(self, trace: Option<TraceParent>) -> Self {
        Self { trace, ..self }
    }

    /// Refuses a turn that could never begin, because it is submitted in a tool call that its session waits
    /// for.
    pub fn may_begin_in(&self, session: &SessionId, open: &OpenWithin) -> Result<(), Failure> {
        let Some(within) = &self.within else { return Ok(()) };
        if !open.would_deadlock(session, within) {
            return Ok(());
        }
        let message =
            format!("session {session} waits for tool call {within}, which sent the turn");
        Err(Failure::new(ErrorCode::WouldDeadlock, message))
    }

    pub fn into_request(self) -> (Request, Pending) {
        let (reply, answer) = oneshot::channel();
        let number = Arc::new(OnceLock::new());
        let submit = SubmitRequest {
            id: self.id,
            code: self.code,
            deadline_ms: self.deadline_ms,
            context: self.context,
            within: self.within,
            trace: self.trace,
            until: until(self.wait),
            number: number.clone(),
            note: self.note,
            reply,
        };
        let Self { wait, budget, place, .. } = self;
        (Request::Submit(submit), Pending { answer, number, wait, budget, _place: place })
    }
}

impl Pending {
    /// The turn when it is settled, or when the wait has passed.
    pub async fn answer(self, app: &App, handle: &SessionHandle) -> Answer<Turn> {
        let (number, began) = (self.number, Instant::now());
        let now = || match number.get() {
            Some(number) => Ok(TurnRef::Number(*number)),
            None => Err(Failure::new(
                ErrorCode::Overloaded,
                format!("session {} has not taken the turn yet", handle.id),
            )),
        };
        let snapshot = settled(&app.serving.patience, handle, self.answer, self.wait, now).await?;
        let snapshot = replicated::told(app, handle, snapshot, (began, self.wait)).await;
        present(app, &handle.id, snapshot, self.budget, || Ok(handle.reader.again())).await
    }
}

/// Waits for `answer`. When the wait has passed, asks the session for the turn's current state.
async fn settled(
    patience: &TimerPool,
    handle: &SessionHandle,
    mut answer: oneshot::Receiver<Result<Snapshot, Failure>>,
    wait: Duration,
    now: impl FnOnce() -> Result<TurnRef, Failure>,
) -> Result<Snapshot, Failure> {
    let gone = |_| Err(handle.gone());
    if wait.is_zero() {
        return answer.await.unwrap_or_else(gone);
    }
    if let Some(answer) = patience.within(wait, &mut answer).await {
        return answer.unwrap_or_else(gone);
    }
    let turn = now()?;
    match handle.ask(|reply| Request::Look { turn, until: Until::Now, reply }).await {
        // The turn ended meanwhile, and so did so many others that the session no longer has it in memory. Its
        // end has been answered.
        Err(failure) if failure.code == ErrorCode::TurnNotFound => {
            answer.try_recv().unwrap_or(Err(failure))
        }
        looked => looked,
    }
}

/// Refuses a context that is too large, or that no process can be given.
fn checked_context(context: Box<TurnContext>) -> Answer<Box<TurnContext>> {
    let bytes = context.json_bytes();
    if bytes > TURN_CONTEXT_BYTES_MAX {
        let message = format!(
            "the context of the turn has {bytes} bytes as JSON; the limit is {TURN_CONTEXT_BYTES_MAX}"
        );
        return Err(Failure::new(ErrorCode::MessageTooLarge, message).into());
    }
    let TurnContext { file, args, cwd, env, .. } = &*context;
    let variables = env.iter().flat_map(|(name, value)| [name, value]);
    if file.iter().chain(args).chain(cwd).chain(variables).any(|text| text.contains('\0')) {
        return Err(bad_request("a text in the context has a zero byte".to_owned()));
    }
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(bad_request(format!("{name:?} is no name of an environment variable")));
    }
    Ok(context)
}

/// The host tool call in which the client makes the request, if any.
fn within(headers: &HeaderMap) -> Answer<Option<Within>> {
    let Some(value) = headers.get(WITHIN_HEADER) else { return Ok(None) };
    match value.to_str().ok().and_then(Within::parse) {
        Some(within) => Ok(Some(within)),
        None => Err(bad_request(format!("{WITHIN_HEADER} is SESSION/TURN/CALL"))),
    }
}

/// Run code as a new turn.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns", request_body = SubmitTurn,
    params(("session" = String, Path)),
    responses((status = 200, body = Turn), (status = "default", body = ApiError)))]
pub(super) async fn submit(
    State(app): State<App>,
    InPath(session): InPath<String>,
    note: AuditNote,
    headers: HeaderMap,
    JsonBody(submit): JsonBody<SubmitTurn>,
) -> Answer<Json<Turn>> {
    let handle = live(&app, session)?;
    let bounds = app.serving.bounds.of_session(&handle.id);
    let wish = Wish::check(submit, &headers, &bounds, note)?;
    let wish = wish.under(trace_parent(&app, &headers));
    wish.may_begin_in(&handle.id, &app.within)?;
    let (request, pending) = wish.into_request();
    handle.send(request).await?;
    pending.answer(&app, &handle).await.map(Json)
}

/// A turn as it is, or once it ends or asks for input.
#[utoipa::path(get, path = "/v1/sessions/{session}/turns/{turn}",
    params(("session" = String, Path), ("turn" = String, Path), TurnQuery),
    responses((status = 200, body = Turn), (status = "default", body = ApiError)))]
pub(super) async fn look(
    State(app): State<App>,
    log: ReadLog,
    InPath((session, turn)): InPath<(String, String)>,
    Asked(query): Asked<TurnQuery>,
) -> Answer<Json<Turn>> {
    let (session, turn) = (session_id(session)?, turn_id(turn)?);
    let budget = Budgets {
        output: budget(query.output_bytes_max),
        stdout: stream_budget(query.stdout_bytes_max),
        stderr: stream_budget(query.stderr_bytes_max),
    };
    if let Some(handle) = log.live(&app, &session) {
        let (reply, answer) = oneshot::channel();
        let (wait, _place) = wait(query.wait_ms, &app.serving.bounds.of_session(&session));
        let which = TurnRef::Id(turn.clone());
        let began = Instant::now();
        let asked = Request::Look { turn: which.clone(), until: until(wait), reply };
        handle.send(asked).await?;
        match settled(&app.serving.patience, &handle, answer, wait, || Ok(which)).await {
            Ok(snapshot) => {
                let snapshot = replicated::told(&app, &handle, snapshot, (began, wait)).await;
                let reader = || Ok(handle.reader.again());
                return present(&app, &session, snapshot, budget, reader).await.map(Json);
            }
            // The session's owner no longer has the turn in memory, or the session has ended meanwhile.
            Err(Failure { code: ErrorCode::TurnNotFound | ErrorCode::SessionEnded, .. }) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    let known = log.turn(&app, &session, &turn)?;
    let snapshot = Snapshot { turn: known, state: TurnState::Ended, accepted: None };
    present(&app, &session, snapshot, budget, || log.reader(&app, &session)).await.map(Json)
}

/// Stop a turn: the running one, or one that waits.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/interrupt",
    params(("session" = String, Path), ("turn" = String, Path)),
    responses((status = 200, body = Turn), (status = "default", body = ApiError)))]
pub(super) async fn interrupt(
    State(app): State<App>,
    InPath((session, turn)): InPath<(String, String)>,
) -> Answer<Json<Turn>> {
    interrupted(&app, &live(&app, session)?, Some(turn_id(turn)?)).await
}

/// Stop the running turn, or the first turn that waits for the worker to start.
#[utoipa::path(post, path = "/v1/sessions/{session}/interrupt",
    params(("session" = String, Path)),
    responses((status = 200, body = Turn), (status = "default", body = ApiError)))]
pub(super) async fn interrupt_running(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<Turn>> {
    interrupted(&app, &live(&app, session)?, None).await
}

async fn interrupted(
    app: &App,
    handle: &SessionHandle,
    turn: Option<TurnId>,
) -> Answer<Json<Turn>> {
    let began = Instant::now();
    let snapshot = handle.ask(|reply| Request::Interrupt { turn, reply }).await?;
    let snapshot = replicated::told(app, handle, snapshot, (began, Duration::ZERO)).await;
    let reader = || Ok(handle.reader.again());
    present(app, &handle.id, snapshot, Budgets::DEFAULT, reader).await.map(Json)
}

/// Give input to a running turn.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/input", request_body = TurnInput,
    params(("session" = String, Path), ("turn" = String, Path)),
    responses((status = 200, body = Turn), (status = "default", body = ApiError)))]
pub(super) async fn input(
    State(app): State<App>,
    InPath((session, turn)): InPath<(String, String)>,
    note: AuditNote,
    JsonBody(input): JsonBody<TurnInput>,
) -> Answer<Json<Turn>> {
    let handle = live(&app, session)?;
    let turn = turn_id(turn)?;
    let (eof, keys) = (input.eof, input.keys);
    let bytes = message(input_bytes(input)?, &app.serving.bounds.of_session(&handle.id).input)?;
    note.add("bytes", bytes.len() as u64);
    note.add("eof", eof);
    let input = InputRequest { bytes, eof, keys };
    let began = Instant::now();
    let snapshot = handle.ask(|reply| Request::Input { turn, input, reply }).await?;
    let snapshot = replicated::told(&app, &handle, snapshot, (began, Duration::ZERO)).await;
    let reader = || Ok(handle.reader.again());
    present(&app, &handle.id, snapshot, Budgets::DEFAULT, reader).await.map(Json)
}

fn input_bytes(input: TurnInput) -> Answer<Vec<u8>> {
    match (input.text, input.base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => base64::engine::general_purpose::STANDARD
            .decode(base64)
            .map_err(|error| bad_request(format!("base64: {error}"))),
        (None, None) => Ok(Vec::new()),
        (Some(_), Some(_)) => Err(bad_request("give text or base64, not both")),
    }
}

/// A turn as the reply shows it. Output that is not in memory is read from the journal.
async fn present(
    app: &App,
    session: &SessionId,
    snapshot: Snapshot,
    budget: Budgets,
    reader: impl FnOnce() -> Answer<Box<dyn EventReader>>,
) -> Answer<Turn> {
    let Snapshot { turn, state, .. } = snapshot;
    let excerpt = turn.output.excerpt(budget.output);
    let (shown, stdout, stderr) = match excerpt {
        Some(shown) if !budget.has_streams() => (shown, None, None),
        excerpt => {
            let (reader, bytes) = (reader()?, turn.output.bytes);
            let (range, id) = (turn.range(), turn.id.clone());
            let owner = session.clone();
            let reading = move || {
                let shown = match excerpt {
                    Some(shown) => shown,
                    None => from_journal(&*reader, range, bytes, budget.output)?,
                };
                let [stdout, stderr] = streams(&*reader, range, budget, (&owner, &id))?;
                Answer::Ok((shown, stdout, stderr))
            };
            app.serving.bounds.of_session(session).page_reads.run(reading).await??
        }
    };
    let (mut outcome, mut error, mut usage, mut receipt) = (None, None, None, None);
    let (mut refusal, mut exit_code, mut value) = (None, None, None);
    if let Some(end) = turn.end {
        (outcome, error, usage) = (Some(end.outcome), end.error, Some(end.usage));
        (receipt, refusal) = (end.receipt, end.refusal);
        (exit_code, value) = (end.exit_code, end.value);
    }
    Ok(Turn {
        id: turn.id,
        session: session.clone(),
        number: turn.number,
        state,
        outcome,
        error,
        stdin_wait: turn.stdin_wait,
        output: shown.to_view(session.as_str(), turn.extent.from),
        stdout,
        stderr,
        exit_code,
        value,
        displays: turn.displays,
        usage,
        receipt,
        refusal,
    })
}

/// The head and tail of a turn's output, from the journal. They never overlap. Without its beginning, an output has only a
/// tail.
fn from_journal(
    reader: &dyn EventReader,
    range: OutputRange,
    bytes: u64,
    budget: usize,
) -> Answer<OutputExcerpt> {
    let part = if bytes <= budget as u64 { budget } else { end_bytes(budget) };
    let first = reader.head(part, range).map_err(internal)?;
    let (mut head, rest) = match first.dropped_before {
        0 => (first.bytes, OutputRange { from: first.next, ..range }),
        _ => (Bytes::new(), range),
    };
    head.truncate(part);
    // An output that fits has a rest only behind a gap.
    let tail = if rest.from < rest.to {
        reader.tail(part as u64, rest).map_err(internal)?.bytes
    } else {
        Bytes::new()
    };
    Ok(OutputExcerpt { head, tail, bytes })
}

/// The streams of a turn's output on their own, as far as the request asks for them.
fn streams(
    reader: &dyn EventReader,
    range: OutputRange,
    budget: Budgets,
    (session, turn): (&SessionId, &TurnId),
) -> Answer<[Option<StreamView>; 2]> {
    let view = |name: &str, wanted: &[Stream], budget: Option<usize>| -> Answer<_> {
        let Some(budget) = budget else { return Ok(None) };
        let ends = reader.stream_ends(wanted, budget, range).map_err(internal)?;
        Ok(Some(StreamExcerpt { name, session, turn }.view(&ends, budget)))
    };
    Ok([
        view("standard output", &[Stream::Stdout], budget.stdout)?,
        view("standard error", &[Stream::Stderr, Stream::Traceback], budget.stderr)?,
    ])
}

/// How long a reply may wait, and its share of the long connections. If too many replies wait already, this
/// one does not wait.
fn wait(wait_ms: u64, bounds: &Bounds) -> (Duration, Option<BudgetShare>) {
    if wait_ms == 0 {
        return (Duration::ZERO, None);
    }
    match bounds.long_connections.claim(1) {
        Ok(place) => (Duration::from_millis(wait_ms.min(WAIT_MS_MAX)), Some(place)),
        Err(_) => (Duration::ZERO, None),
    }
}

fn until(wait: Duration) -> Until {
    if wait.is_zero() { Until::Now } else { Until::Settled }
}

/// The bytes of output in one reply.
#[derive(Debug, Clone, Copy)]
struct Budgets {
    output: usize,
    /// `None`: the stream is not shown on its own.
    stdout: Option<usize>,
    stderr: Option<usize>,
}

impl Budgets {
    const DEFAULT: Self = Self { output: OUTPUT_BYTES_DEFAULT, stdout: None, stderr: None };

    fn has_streams(&self) -> bool {
        self.stdout.is_some() || self.stderr.is_some()
    }
}

fn stream_budget(asked: Option<usize>) -> Option<usize> {
    asked.filter(|bytes| *bytes > 0).map(|bytes| bytes.min(OUTPUT_BYTES_MAX))
}

fn budget(asked: Option<usize>) -> usize {
    asked.unwrap_or(OUTPUT_BYTES_DEFAULT).min(OUTPUT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use windlass_journal::{CopiedReader, CopiedSession, NewSession, OutputScope};
    use windlass_protocol::event::DropReason;
    use windlass_protocol::{Event, EventKind, Seq};

    use super::*;

    /// A copy with the output of one turn. A piece without text is left out.
    fn copy_of(pieces: &[(&'static str, u64)]) -> CopiedReader {
        let mut copy = CopiedSession::new(NewSession {
            id: SessionId::parse("s1").unwrap(),
            created_at_ms: 1,
            workspace: String::new(),
            worker_kind: "python".to_owned(),
            spec: serde_json::json!({}),
            quota_bytes: 0,
        });
        for (seq, (text, bytes)) in (1..).zip(pieces) {
            let kind = if text.is_empty() {
                EventKind::OutputDropped { bytes: *bytes, reason: DropReason::NotCopied }
            } else {
                EventKind::Output { stream: Stream::Stdout, background: false }
            };
            let turn = Some(TurnNo(1));
            let event = Event { seq: Seq(seq), at_ms: seq, turn, link: None, kind };
            copy.push(event, Bytes::from_static(text.as_bytes()), text.len() as u64);
        }
        CopiedReader::new(Arc::new(copy))
    }

    #[test]
    fn an_excerpt_shows_nothing_twice_and_what_lies_behind_a_gap() {
        let (lead, gap) = ([("", 100), ("the tail", 8)], [("head", 4), ("", 100), ("the tail", 8)]);
        let whole = [("head", 4), ("the tail", 8)];
        for (pieces, budget, head, tail) in [
            (&lead[..], 1000, "", "the tail"),
            (&lead[..], 64, "", "the tail"),
            (&lead[..], 16, "", "tail"),
            (&gap[..], 1000, "head", "the tail"),
            (&gap[..], 16, "head", "tail"),
            (&whole[..], 1000, "headthe tail", ""),
            (&whole[..], 8, "he", "il"),
        ] {
            let bytes: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
            let range = OutputRange { from: 0, to: bytes, scope: OutputScope::Turn(TurnNo(1)) };
            let excerpt = from_journal(&copy_of(pieces), range, bytes, budget).ok().unwrap();
            let shown = (&excerpt.head[..], &excerpt.tail[..]);
            assert_eq!(shown, (head.as_bytes(), tail.as_bytes()), "{pieces:?} {budget}");
            assert_eq!(excerpt.bytes, bytes);
        }
    }
}
