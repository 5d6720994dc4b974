//! A unix socket on which the session's code calls host tools. For interpreters that are another process than
//! their worker.
//!
//! One connection carries one call. The code sends one line of JSON, `{"name", "arguments", "deadline_ms"?}`, and
//! receives one line: `{"ok": true, "value": ...}` or `{"ok": false, "error": {"message", "code"?, "type"?}}`. Code
//! that closes the connection gives up the call.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::select;
use tokio::sync::{Semaphore, mpsc, oneshot};
use windlass_protocol::limits::{MESSAGE_BYTES_MAX, TOOL_CALLS_MAX};

/// Maximum bytes of a request besides its arguments.
const REQUEST_FIELDS_BYTES_MAX: usize = 4096;

/// Maximum number of events that wait for the worker.
const EVENTS_MAX: usize = 64;

/// What the code does with its tools.
#[derive(Debug)]
pub enum ToolEvent {
    Call(ToolSocketCall),
    /// The code does not wait for this call any longer.
    GivenUp {
        request: u64,
    },
}

/// A call of the code.
#[derive(Debug)]
pub struct ToolSocketCall {
    /// The number of the request on this socket.
    pub request: u64,
    pub name: String,
    /// A JSON object.
    pub arguments: Vec<u8>,
    pub deadline_ms: Option<u64>,
    /// Takes the answer, made by [`success`] or [`failure`].
    pub answer: oneshot::Sender<Vec<u8>>,
}

/// The line for a result. `value` is JSON.
pub fn success(value: &[u8]) -> Vec<u8> {
    [b"{\"ok\":true,\"value\":".as_slice(), on_one_line(value).as_slice(), b"}\n"].concat()
}

/// The line for an error. `error` is a JSON object.
pub fn failure(error: &[u8]) -> Vec<u8> {
    [b"{\"ok\":false,\"error\":".as_slice(), on_one_line(error).as_slice(), b"}\n"].concat()
}

/// The line for an error of the worker itself.
pub fn refusal(code: &str, message: &str) -> Vec<u8> {
    failure(serde_json::json!({"message": message, "code": code}).to_string().as_bytes())
}

/// A line end between the tokens of JSON means nothing, and inside a text it is escaped.
fn on_one_line(json: &[u8]) -> Vec<u8> {
    json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

/// Accepts connections until the receiver is dropped.
pub fn serve(listener: UnixListener) -> mpsc::Receiver<ToolEvent> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let open = Arc::new(Semaphore::new(TOOL_CALLS_MAX));
    tokio::spawn(async move {
        let mut request = 0;
        loop {
            // The limit of open calls: further connections wait in the socket's queue.
            let Ok(permit) = Arc::clone(&open).acquire_owned().await else { return };
            let connection = select! {
                accepted = listener.accept() => accepted,
                () = events.closed() => return,
            };
            let Ok((connection, _)) = connection else { continue };
            request += 1;
            let events = events.clone();
            tokio::spawn(async move {
                serve_call(connection, request, events).await;
                drop(permit);
            });
        }
    });
    receiver
}

async fn serve_call(mut connection: UnixStream, request: u64, events: mpsc::Sender<ToolEvent>) {
    let call = match read_request(&mut connection).await {
        Ok(Some(line)) => parsed(&line),
        Ok(None) => return,
        Err(refused) => Err(refused),
    };
    let answer = match call {
        Err(refused) => refused,
        Ok((name, arguments, deadline_ms)) => {
            let (answer, mut answered) = oneshot::channel();
            let call = ToolSocketCall { request, name, arguments, deadline_ms, answer };
            if events.send(ToolEvent::Call(call)).await.is_err() {
                return;
            }
            let mut further = [0];
            let answer = select! {
                answer = &mut answered => answer,
                _ = connection.read(&mut further) => {
                    let _ = events.send(ToolEvent::GivenUp { request }).await;
                    return;
                }
            };
            answer.unwrap_or_else(|_| refusal("tool_cancelled", "the worker ends"))
        }
    };
    let _ = connection.write_all(&answer).await;
}

/// The line of a request without its end. `None` if the connection ends before.
async fn read_request(connection: &mut UnixStream) -> Result<Option<Vec<u8>>, Vec<u8>> {
    let mut line = Vec::new();
    loop {
        match connection.read_buf(&mut line).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) if line.ends_with(b"\n") => return Ok(Some(line)),
            Ok(_) if line.len() > MESSAGE_BYTES_MAX + REQUEST_FIELDS_BYTES_MAX => {
                return Err(too_large());
            }
            Ok(_) => {}
        }
    }
}

type ParsedCall = (String, Vec<u8>, Option<u64>);

fn parsed(line: &[u8]) -> Result<ParsedCall, Vec<u8>> {
    #[derive(Deserialize)]
    struct SocketRequest<'a> {
        name: String,
        #[serde(borrow)]
        arguments: &'a RawValue,
        #[serde(default)]
        deadline_ms: Option<u64>,
    }
    let bad = |cause: String| refusal("bad_request", &format!("the call is malformed: {cause}"));
    let call: SocketRequest<'_> =
        serde_json::from_slice(line).map_err(|error| bad(error.to_string()))?;
    let arguments = call.arguments.get();
    if !arguments.starts_with('{') {
        return Err(bad("the arguments are not an object".to_owned()));
    }
    if arguments.len() > MESSAGE_BYTES_MAX {
        return Err(too_large());
    }
    Ok((call.name, arguments.as_bytes().to_vec(), call.deadline_ms))
}

fn too_large() -> Vec<u8> {
    let message = format!("the arguments are over the limit of {MESSAGE_BYTES_MAX} bytes");
    refusal("message_too_large", &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_an_object_with_a_name_and_arguments() {
        for (line, accepted) in [
            (r#"{"name":"a.b","arguments":{"x":100000000000000000000000}}"#, true),
            (r#"{"name":"a","arguments":{},"deadline_ms":5,"new":1}"#, true),
            (r#"{"name":"a","arguments":[1]}"#, false),
            (r#"{"name":"a"}"#, false),
            ("{", false),
            ("", false),
        ] {
            assert_eq!(parsed(line.as_bytes()).is_ok(), accepted, "{line}");
        }
        let (_, arguments, _) = parsed(br#"{"name":"a","arguments":{"x": 1e3}}"#).unwrap();
        assert_eq!(arguments, br#"{"x": 1e3}"#);
    }

    #[test]
    fn an_answer_is_one_line() {
        let answer = success(b"{\n \"a\": \"b\\nc\"\r\n}\n");
        assert_eq!(answer.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert!(answer.ends_with(b"\n"));
    }
}
