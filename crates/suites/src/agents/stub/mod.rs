//! A loopback stub of the model behind an agent: it speaks OpenAI's Responses and Anthropic's
//! Messages, asks for the tools that a script names, and keeps what it was told. It never reaches
//! beyond 127.0.0.1, and ends when it is dropped.

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

use self::script::Reply;
pub use self::script::{Call, Script, Seen};

/// One request, pictures and all.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Requests of one script. A client that asks more often goes round in circles.
const REQUESTS_MAX: usize = 100;

/// What a request that is not of the script's conversation is told: a title, a probe.
const BLAND: &str = "ok";

/// What one API looks like on the wire. What is said is [`script`]'s.
trait Dialect {
    /// The tools that the client offers, by their whole names.
    fn offers(&self, request: &Value) -> Vec<Offer>;
    /// The results of tool calls that the request tells, oldest first, each with its call's id.
    fn results(&self, request: &Value) -> Vec<(String, Seen)>;
    /// The whole answer; `number` makes its ids unlike those of all others.
    fn answer(&self, request: &Value, reply: &Reply, number: usize) -> Answer;
}

/// A tool as a client names it to its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub name: String,
    /// What the name stands in, with clients that group the tools of a server.
    pub namespace: Option<String>,
}

impl Offer {
    fn whole_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}__{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// An answer as a client reads it.
#[derive(Debug)]
enum Answer {
    Json(Value),
    /// Events with their types, in order.
    Stream(Vec<Value>),
}

/// The stub, while it serves.
#[derive(Debug)]
pub struct Stub {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    serving: JoinHandle<()>,
}

/// What came of a script.
#[derive(Debug, Default)]
pub struct Heard {
    /// The results of the script's calls, in its order, as the last request told them.
    pub results: Vec<Seen>,
    /// Whether the model had to look for a tool of the script, having been told its name only.
    pub searched: bool,
    /// Why the conversation could not go on.
    pub fault: Option<String>,
    /// What was asked, for a reader who wonders: the paths in order.
    pub paths: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    script: Script,
    heard: Heard,
}

impl Stub {
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let router = Router::new()
            .fallback(serve)
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move {
            // Ends only with the task.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, shared, serving })
    }

    /// Where the API is, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on the conversation is this one.
    pub fn play(&self, script: Script) {
        *lock(&self.shared) = Shared { script, heard: Heard::default() };
    }

    /// What was heard since [`Stub::play`].
    pub fn heard(&self) -> Heard {
        std::mem::take(&mut lock(&self.shared).heard)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Nothing that holds the lock leaves a half of a change behind.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(State(shared): State<Arc<Mutex<Shared>>>, uri: Uri, body: Bytes) -> Response {
    let mut shared = lock(&shared);
    if shared.heard.paths.len() >= REQUESTS_MAX {
        shared.heard.fault = Some(format!("the client asked more than {REQUESTS_MAX} times"));
        return refusal(StatusCode::BAD_REQUEST, "too many requests of one script");
    }
    shared.heard.paths.push(uri.path().to_owned());
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    match uri.path() {
        "/v1/responses" => converse(&mut shared, &openai::Responses, &request),
        "/v1/messages" => converse(&mut shared, &anthropic::Messages, &request),
        "/v1/messages/count_tokens" => plain(&json!({ "input_tokens": body.len() / 4 })),
        "/v1/models" => plain(&json!({ "data": [], "models": [], "has_more": false })),
        _ => refusal(StatusCode::NOT_FOUND, "the stub does not serve this path"),
    }
}

fn converse(shared: &mut Shared, dialect: &dyn Dialect, request: &Value) -> Response {
    let reply = if shared.script.is_in(request) {
        let results = dialect.results(request);
        let reply = shared.script.reply(&results, &dialect.offers(request));
        shared.heard.searched |= reply.as_ref().is_ok_and(Reply::is_search);
        shared.heard.results = script::of_steps(results);
        reply
    } else {
        Ok(Reply::Say(BLAND.to_owned()))
    };
    match reply {
        Ok(reply) => match dialect.answer(request, &reply, shared.heard.paths.len()) {
            Answer::Json(value) => plain(&value),
            Answer::Stream(events) => {
                ([(header::CONTENT_TYPE, "text/event-stream")], sse::text(&events)).into_response()
            }
        },
        Err(fault) => {
            let told = refusal(StatusCode::BAD_REQUEST, &fault);
            shared.heard.fault = Some(fault);
            told
        }
    }
}

/// The values of a list; none of what is not one.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn plain(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// An error in a form that both APIs' clients read, and do not try again.
fn refusal(status: StatusCode, message: &str) -> Response {
    let error = json!({ "type": "invalid_request_error", "message": message });
    (status, plain(&json!({ "type": "error", "error": error }))).into_response()
}

#[cfg(test)]
mod tests;
