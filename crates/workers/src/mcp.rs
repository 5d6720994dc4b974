//! The program that an agent's engine starts as its MCP server: passes each request to the agent's worker by the tool
//! socket, from where it goes to the node. The engine speaks MCP with it over standard input and output.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use windlass_protocol::agent::{MCP_REQUEST_BYTES_MAX, MCP_RUN_KEY, MCP_TOOL};
use windlass_protocol::limits::DEADLINE_MS_MAX;

use crate::private_dir::random_hex;

const USAGE: &str = "usage: windlass-worker mcp SOCKET";
const USAGE_STATUS: u8 = 2;

/// Maximum number of open requests. The node has the same limit.
const OPEN_MAX: usize = 16;

/// Responses that may wait until the engine reads them.
const WAITING_MAX: usize = OPEN_MAX;

/// JSON-RPC codes of errors.
const INVALID_REQUEST: i64 = -32600;
const FAILED: i64 = -32000;

pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(socket) = arguments.next() else {
        eprintln!("{USAGE}");
        return ExitCode::from(USAGE_STATUS);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(PathBuf::from(socket))));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the engine until it closes standard input.
async fn serve(socket: PathBuf) -> io::Result<()> {
    let socket: Arc<Path> = socket.into();
    let (responses, mut written) = mpsc::channel::<Value>(WAITING_MAX);
    let mut stdout = tokio::io::stdout();
    let writer = tokio::spawn(async move {
        while let Some(response) = written.recv().await {
            let line = format!("{response}\n");
            if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
                return;
            }
        }
    });
    let mut requests = OpenRequests::default();
    let mut input = BufReader::new(tokio::io::stdin());
    while let Some(line) = next_line(&mut input).await? {
        requests.forget_ended();
        match parsed(&line) {
            EngineMessage::Request { id, .. } if requests.open.contains_key(&id.to_string()) => {
                let told = "another open request has this id";
                let _ = responses.send(failure(&id, INVALID_REQUEST, told)).await;
            }
            EngineMessage::Request { id, message } if requests.open.len() < OPEN_MAX => {
                let (socket, responses) = (socket.clone(), responses.clone());
                let name = id.to_string();
                let asked = requests.tasks.spawn(async move {
                    let response = exchange(&socket, &id, &message).await;
                    let _ = responses.send(response).await;
                });
                requests.open.insert(name, asked);
            }
            EngineMessage::Request { id, .. } => {
                let _ = responses.send(failure(&id, FAILED, "too many requests are open")).await;
            }
            EngineMessage::Answered(response) => {
                let _ = responses.send(response).await;
            }
            EngineMessage::Cancel { id } => {
                // The worker sees the closed connection, and gives the call up.
                if let Some(open) = requests.open.remove(&id.to_string()) {
                    open.abort();
                }
            }
            EngineMessage::Other => {}
        }
    }
    requests.tasks.abort_all();
    drop(responses);
    let _ = writer.await;
    Ok(())
}

#[derive(Default)]
struct OpenRequests {
    tasks: JoinSet<()>,
    /// By the JSON text of the request's id.
    open: HashMap<String, AbortHandle>,
}

impl OpenRequests {
    fn forget_ended(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|_, open| !open.is_finished());
    }
}

/// A line without its end. `None` at the end of the input. A line over the limit comes as an empty one.
async fn next_line(
    input: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let available = input.fill_buf().await?;
        if available.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        is_too_long |= line.len() + part.len() > MCP_REQUEST_BYTES_MAX;
        if is_too_long {
            line.clear();
        } else {
            line.extend_from_slice(part);
        }
        let read = part.len() + usize::from(end.is_some());
        input.consume(read);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[derive(Debug, PartialEq)]
enum EngineMessage {
    Request {
        id: Value,
        message: Value,
    },
    /// A request that is answered here.
    Answered(Value),
    Cancel {
        id: Value,
    },
    /// Nothing that needs an answer.
    Other,
}

fn parsed(line: &[u8]) -> EngineMessage {
    if line.iter().all(u8::is_ascii_whitespace) && !line.is_empty() {
        return EngineMessage::Other;
    }
    let Ok(message @ Value::Object(_)) = serde_json::from_slice::<Value>(line) else {
        let told = format!("a message is one JSON object of at most {MCP_REQUEST_BYTES_MAX} bytes");
        return EngineMessage::Answered(failure(&Value::Null, INVALID_REQUEST, &told));
    };
    match (message["method"].as_str(), message.get("id").cloned()) {
        (Some("ping"), Some(id)) => {
            EngineMessage::Answered(json!({"jsonrpc": "2.0", "id": id, "result": {}}))
        }
        (Some(_), Some(id)) => EngineMessage::Request { id, message },
        (Some("notifications/cancelled"), None) => {
            EngineMessage::Cancel { id: message["params"]["requestId"].clone() }
        }
        _ => EngineMessage::Other,
    }
}

/// Sends a request to the worker, and gives the response.
async fn exchange(socket: &Path, id: &Value, message: &Value) -> Value {
    let answered = match ask(socket, &with_key(message.clone())).await {
        Ok(answered) => answered,
        Err(error) => return failure(id, FAILED, &format!("the session does not answer: {error}")),
    };
    match answered["ok"].as_bool() {
        Some(true) => answered["value"].clone(),
        _ => {
            let message = answered["error"]["message"].as_str();
            failure(id, FAILED, message.unwrap_or("the session gave no answer"))
        }
    }
}

async fn ask(socket: &Path, message: &Value) -> io::Result<Value> {
    let mut connection = UnixStream::connect(socket).await?;
    let call = json!({"name": MCP_TOOL, "arguments": message, "deadline_ms": DEADLINE_MS_MAX});
    connection.write_all(format!("{call}\n").as_bytes()).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Adds a key to a request, by which the node knows the request again.
fn with_key(mut message: Value) -> Value {
    let Ok(key) = random_hex(16) else { return message };
    let params = &mut message["params"];
    if !params.is_object() {
        *params = Value::Object(Map::new());
    }
    let meta = &mut params["_meta"];
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    meta[MCP_RUN_KEY] = Value::from(format!("m{key}"));
    message
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let text = |line: &str| match parsed(line.as_bytes()) {
            EngineMessage::Request { id, .. } => format!("request {id}"),
            EngineMessage::Answered(response) => {
                let code = response["error"]["code"].as_i64().unwrap_or_default();
                format!("answered {} {code}", response["id"])
            }
            EngineMessage::Cancel { id } => format!("cancel {id}"),
            EngineMessage::Other => "other".to_owned(),
        };
        for (line, expected) in [
            (r#"{"id":1,"method":"tools/list"}"#, "request 1"),
            (r#"{"id":"a","method":"initialize","params":{}}"#, r#"request "a""#),
            (r#"{"id":2,"method":"ping"}"#, "answered 2 0"),
            (r#"{"method":"notifications/initialized"}"#, "other"),
            (r#"{"method":"notifications/cancelled","params":{"requestId":7}}"#, "cancel 7"),
            (r#"{"id":3,"result":{}}"#, "other"),
            ("  ", "other"),
            ("", "answered null -32600"),
            ("[]", "answered null -32600"),
            ("{", "answered null -32600"),
        ] {
            assert_eq!(text(line), expected, "{line}");
        }
    }

    #[test]
    fn a_key_is_added_to_any_request() {
        for message in [
            json!({"id": 1}),
            json!({"id": 1, "params": [1]}),
            json!({"id": 1, "params": {"_meta": 3, "name": "run"}}),
            json!({"id": 1, "params": {"_meta": {"a": 1}}}),
        ] {
            let keyed = with_key(message.clone());
            let key = keyed["params"]["_meta"][MCP_RUN_KEY].as_str().unwrap();
            assert_eq!(key.len(), 33, "{keyed}");
            assert_eq!(keyed["params"]["name"], message["params"]["name"]);
            assert_eq!(keyed["params"]["_meta"]["a"], message["params"]["_meta"]["a"]);
        }
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_skipped() {
        let mut text = vec![b'x'; MCP_REQUEST_BYTES_MAX + 1];
        text.extend_from_slice(b"\n{}\nlast");
        let mut input = BufReader::new(&*text);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).await.unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["", "{}", "last"]);
    }
}
