//! A stub of an agent's model. It serves OpenAI's Responses API and Anthropic's Messages API on 127.0.0.1,
//! calls the tools that a script names, and records the results. It makes no connections, and ends when it is
//! dropped.

mod anthropic;
mod openai;
mod script;
mod sse;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::script::ModelReply;
pub use self::script::{Script, ScriptedCall, StubToolResult};

/// The largest request, images included.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// The most requests for one script. A client that sends more is in a loop.
const REQUESTS_MAX: usize = 100;

/// The reply to a request that is not part of the script's conversation, such as one for a title.
const FILLER_REPLY: &str = "ok";

/// The wire format of one API. The module [`script`] decides what the model says.
trait Dialect {
    /// The tools that the client offers to the model.
    fn offers(&self, request: &Value) -> Vec<AgentTool>;
    /// The tool results in the request, oldest first, each with the id of its call.
    fn results(&self, request: &Value) -> Vec<(String, StubToolResult)>;
    /// The body of the reply. `number` makes its ids unique.
    fn answer(&self, request: &Value, reply: &ModelReply, number: usize) -> ReplyBody;
}

/// A tool that the client offers to the model, under the client's name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTool {
    pub name: String,
    /// The namespace of the tool. Only some clients group the tools of a server.
    pub namespace: Option<String>,
}

impl AgentTool {
    fn whole_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}__{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The body of a reply in one API's format.
#[derive(Debug)]
enum ReplyBody {
    Json(Value),
    /// Events with their types, in order.
    Stream(Vec<Value>),
}

/// A running stub.
#[derive(Debug)]
pub struct Stub {
    address: SocketAddr,
    shared: Arc<Mutex<StubState>>,
    serving: JoinHandle<()>,
}

/// What the stub received while it ran a script.
#[derive(Debug, Default)]
pub struct StubTranscript {
    /// The results of the script's calls in order, from the last request.
    pub results: Vec<StubToolResult>,
    /// Whether the client gave only the name of a tool, so that the model had to search for it.
    pub searched: bool,
    /// Why the conversation stopped.
    pub fault: Option<String>,
    /// The paths of all requests in order, for diagnosis.
    pub paths: Vec<String>,
}

#[derive(Debug, Default)]
struct StubState {
    script: Script,
    transcript: StubTranscript,
}

impl Stub {
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Mutex::new(StubState::default()));
        let router = Router::new()
            .fallback(serve)
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move {
            // Serves until the task is aborted.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, shared, serving })
    }

    /// The base URL of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts a new script and clears the transcript.
    pub fn play(&self, script: Script) {
        *lock(&self.shared) = StubState { script, transcript: StubTranscript::default() };
    }

    /// Takes what the stub received since [`Stub::play`].
    pub fn transcript(&self) -> StubTranscript {
        std::mem::take(&mut lock(&self.shared).transcript)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A poisoned lock is used: no holder of the lock can panic in the middle of a change.
fn lock(shared: &Mutex<StubState>) -> MutexGuard<'_, StubState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(State(shared): State<Arc<Mutex<StubState>>>, uri: Uri, body: Bytes) -> Response {
    let mut shared = lock(&shared);
    if shared.transcript.paths.len() >= REQUESTS_MAX {
        shared.transcript.fault =
            Some(format!("the client sent more than {REQUESTS_MAX} requests for one script"));
        return refusal(StatusCode::BAD_REQUEST, "too many requests for one script");
    }
    shared.transcript.paths.push(uri.path().to_owned());
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    match uri.path() {
        "/v1/responses" => converse(&mut shared, &openai::Responses, &request),
        "/v1/messages" => converse(&mut shared, &anthropic::Messages, &request),
        "/v1/messages/count_tokens" => plain(&json!({ "input_tokens": body.len() / 4 })),
        "/v1/models" => plain(&json!({ "data": [], "models": [], "has_more": false })),
        _ => refusal(StatusCode::NOT_FOUND, "the stub does not serve this path"),
    }
}

fn converse(shared: &mut StubState, dialect: &dyn Dialect, request: &Value) -> Response {
    let reply = if shared.script.is_in(request) {
        let results = dialect.results(request);
        let reply = shared.script.reply(&results, &dialect.offers(request));
        shared.transcript.searched |= reply.as_ref().is_ok_and(ModelReply::is_search);
        shared.transcript.results = script::results_of_steps(results);
        reply
    } else {
        Ok(ModelReply::Say(FILLER_REPLY.to_owned()))
    };
    match reply {
        Ok(reply) => match dialect.answer(request, &reply, shared.transcript.paths.len()) {
            ReplyBody::Json(value) => plain(&value),
            ReplyBody::Stream(events) => {
                ([(header::CONTENT_TYPE, "text/event-stream")], sse::text(&events)).into_response()
            }
        },
        Err(fault) => {
            let response = refusal(StatusCode::BAD_REQUEST, &fault);
            shared.transcript.fault = Some(fault);
            response
        }
    }
}

/// The items of a list. Empty for any other value.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn plain(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// An error that clients of both APIs understand and do not retry.
fn refusal(status: StatusCode, message: &str) -> Response {
    let error = json!({ "type": "invalid_request_error", "message": message });
    (status, plain(&json!({ "type": "error", "error": error }))).into_response()
}

#[cfg(test)]
mod tests;
