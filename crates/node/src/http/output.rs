//! Output as raw bytes: a range, the tail, or a search. Also the bytes of displays.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use windlass_journal::{EventReader, OUTPUT_SLICE_BYTES_MAX, OutputRange};
use windlass_protocol::api::{ApiError, OutputQuery, SearchMatch, SearchQuery, SearchResult};
use windlass_protocol::{ErrorCode, Seq, SessionId};

use super::App;
use super::body::{Asked, InPath};
use super::read_log::ReadLog;
use super::reply::{Answer, bad_request, internal, session_id, turn_id};
use crate::failure::Failure;
use crate::session::{Request, TurnRef, Until};

/// Default and maximum number of matches in one search reply.
const MATCHES_DEFAULT: usize = 100;
const MATCHES_MAX: usize = 1000;

/// Response headers that tell which bytes the response contains.
const FROM: &str = "windlass-output-from";
const NEXT: &str = "windlass-output-next";
const TOTAL: &str = "windlass-output-total";
const DROPPED: &str = "windlass-output-dropped";

/// Output bytes: a range or the tail, of the session or of one turn.
#[utoipa::path(get, path = "/v1/sessions/{session}/output",
    params(("session" = String, Path), OutputQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = "default", body = ApiError)))]
pub(super) async fn range(
    State(app): State<App>,
    log: ReadLog,
    InPath(session): InPath<String>,
    Asked(query): Asked<OutputQuery>,
) -> Answer<Response> {
    let id = session_id(session)?;
    let reader = log.reader(&app, &id)?;
    let OutputRange { from: start, to: end, scope } =
        extent(&app, &log, &id, &*reader, query.turn.as_deref()).await?;
    let place = |offset: u64| start.saturating_add(offset).min(end);
    let from = place(query.from.unwrap_or(0));
    let to = query.to.map_or(end, place).max(from);
    let range = OutputRange { from, to, scope };
    let read = move || match query.tail {
        Some(tail) => reader.tail(tail, range),
        None => reader.head(OUTPUT_SLICE_BYTES_MAX, range),
    };
    let bounds = app.serving.bounds.of_session(&id);
    let slice = bounds.page_reads.run(read).await?.map_err(internal)?;
    let bytes = bounds.answers.counted(slice.bytes)?;
    let headers = [
        (FROM, slice.from.saturating_sub(start).to_string()),
        (NEXT, slice.next.saturating_sub(start).to_string()),
        (TOTAL, end.saturating_sub(start).to_string()),
        (DROPPED, slice.dropped_before.to_string()),
    ];
    let content_type = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((content_type, headers, bytes).into_response())
}

/// The range of a session's or a turn's output within the session's output.
async fn extent(
    app: &App,
    log: &ReadLog,
    id: &SessionId,
    reader: &dyn EventReader,
    turn: Option<&str>,
) -> Answer<OutputRange> {
    let end = reader.output_end();
    let Some(turn) = turn else { return Ok(OutputRange { to: end, ..OutputRange::ALL }) };
    let turn = turn_id(turn.to_owned())?;
    if let Some(handle) = log.live(app, id) {
        let which = TurnRef::Id(turn.clone());
        let look = |reply| Request::Look { turn: which, until: Until::Now, reply };
        if let Ok(snapshot) = handle.ask(look).await {
            let range = snapshot.turn.range();
            return Ok(OutputRange { to: range.to.min(end).max(range.from), ..range });
        }
    }
    Ok(log.turn(app, id, &turn)?.range())
}

/// Lines of the output that hold a text.
#[utoipa::path(get, path = "/v1/sessions/{session}/output/search",
    params(("session" = String, Path), SearchQuery),
    responses((status = 200, body = SearchResult), (status = "default", body = ApiError)))]
pub(super) async fn search(
    State(app): State<App>,
    log: ReadLog,
    InPath(session): InPath<String>,
    Asked(query): Asked<SearchQuery>,
) -> Answer<Json<SearchResult>> {
    if query.query.is_empty() {
        return Err(bad_request("the query is empty"));
    }
    let id = session_id(session)?;
    let reader = log.reader(&app, &id)?;
    let range = extent(&app, &log, &id, &*reader, query.turn.as_deref()).await?;
    let limit = query.limit.unwrap_or(MATCHES_DEFAULT).clamp(1, MATCHES_MAX);
    let needle = query.query.into_bytes();
    let bounds = app.serving.bounds.of_session(&id);
    let searching = bounds.searches.run(move || reader.search(&needle, range, limit));
    let found = searching.await?.map_err(internal)?;
    let matches = found
        .matches
        .into_iter()
        .map(|found| SearchMatch { offset: found.offset, line: found.line })
        .collect();
    Ok(Json(SearchResult { matches, more: found.more }))
}

/// A display's bytes.
#[utoipa::path(get, path = "/v1/sessions/{session}/displays/{seq}",
    params(("session" = String, Path), ("seq" = u64, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = "default", body = ApiError)))]
pub(super) async fn display(
    State(app): State<App>,
    log: ReadLog,
    InPath((session, seq)): InPath<(String, u64)>,
) -> Answer<Response> {
    let id = session_id(session)?;
    let reader = log.reader(&app, &id)?;
    let bounds = app.serving.bounds.of_session(&id);
    let reading = bounds.page_reads.run(move || reader.display(Seq(seq)));
    match reading.await?.map_err(internal)? {
        Some((mime, bytes)) => {
            let bytes = bounds.answers.counted(bytes)?;
            Ok(([(header::CONTENT_TYPE, mime)], bytes).into_response())
        }
        None => {
            let message = format!("session {id} has no display {seq}");
            Err(Failure::new(ErrorCode::NotFound, message).into())
        }
    }
}
