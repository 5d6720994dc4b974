//! The door for the agents of sessions. A session's agent sends each request as a tool call of its session; the requests
//! are hostile, and they reach only the children of that session.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rmcp::RoleServer;
use rmcp::model::{
    ClientCapabilities, ClientJsonRpcMessage, Implementation, InitializeRequestParams,
    JsonRpcMessage, ProtocolVersion,
};
use rmcp::service::serve_directly;
use rmcp::transport::OneshotTransport;
use serde_json::{Value, json};
use windlass_protocol::host::Within;

use crate::door::Door;
use crate::handler::REVISIONS;

/// Bytes of a request that is parsed without another thread.
const PARSED_HERE_BYTES_MAX: usize = 64 * 1024;

/// JSON-RPC codes of errors.
const INVALID_REQUEST: i64 = -32600;
const INTERNAL: i64 = -32603;

/// Answers a request of a session's agent. A future that is dropped stops the code that the request runs.
pub fn answer(door: &Door, call: Within, request: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
    let door = door.for_agent(call);
    respond(door, request).boxed()
}

async fn respond(door: Door, request: Vec<u8>) -> Vec<u8> {
    // A large request takes a while, and this thread serves all sessions.
    let parsed = match request.len() > PARSED_HERE_BYTES_MAX {
        true => tokio::task::spawn_blocking(move || parsed(&request)).await,
        false => Ok(parsed(&request)),
    };
    let AgentMessage { id, requested, message } = match parsed {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(failure)) => return bytes(&failure),
        Err(_) => return bytes(&failure(&Value::Null, INTERNAL, "the node is about to stop")),
    };
    // A door without a client lists no sessions. If the node does not answer, the request fails later.
    let _ = door.client().await;
    let (transport, mut responses) = OneshotTransport::<RoleServer>::new(message);
    let client = Implementation::new("agent", env!("CARGO_PKG_VERSION"));
    let peer = InitializeRequestParams::new(ClientCapabilities::default(), client)
        .with_protocol_version(ProtocolVersion::V_2025_06_18);
    // A dropped service cancels its request.
    let _service = serve_directly(door, transport, Some(peer));
    while let Some(message) = responses.recv().await {
        if matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)) {
            let Some(requested) = requested else { return bytes(&message) };
            let mut response = serde_json::to_value(message).unwrap_or_default();
            if response["result"].is_object() {
                response["result"]["protocolVersion"] = requested;
            }
            return bytes(&response);
        }
    }
    bytes(&failure(&id, INTERNAL, "the request has no answer"))
}

/// A request of an agent.
struct AgentMessage {
    id: Value,
    /// The revision that an `initialize` asks for, if it is supported.
    requested: Option<Value>,
    message: ClientJsonRpcMessage,
}

fn parsed(request: &[u8]) -> Result<AgentMessage, Value> {
    let raw = serde_json::from_slice::<Value>(request)
        .map_err(|_| failure(&Value::Null, INVALID_REQUEST, "the request is not JSON"))?;
    let id = raw["id"].clone();
    let is_initialize = raw["method"].as_str() == Some("initialize");
    let requested = Some(raw["params"]["protocolVersion"].clone());
    let requested = requested.filter(|revision| is_initialize && is_supported(revision));
    match serde_json::from_value::<ClientJsonRpcMessage>(raw) {
        Ok(message @ JsonRpcMessage::Request(_)) => Ok(AgentMessage { id, requested, message }),
        Ok(_) => Err(failure(&id, INVALID_REQUEST, "the message is no request")),
        Err(error) => Err(failure(&id, INVALID_REQUEST, &error.to_string())),
    }
}

fn bytes(response: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(response).unwrap_or_default()
}

fn is_supported(revision: &Value) -> bool {
    REVISIONS.iter().any(|supported| revision.as_str() == Some(supported.as_str()))
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    use windlass_client::ClientError;
    use windlass_protocol::{CallNo, SessionId, TurnNo};

    use super::*;
    use crate::door::{DoorOptions, DoorScope, ScopeSource, Transport};

    async fn answered(request: &str) -> Value {
        let door = Door::new(DoorOptions {
            connect: Box::new(|| Box::pin(async { Err(ClientError::BadUrl) })),
            transport: Transport::Agent,
            scope: ScopeSource::Known(DoorScope::default()),
            policy: None,
            interpreter: None,
            permissions: None,
            allow_packages: false,
        });
        let session = SessionId::parse("s1").unwrap();
        let call = Within { session, turn: TurnNo(1), call: CallNo(2) };
        serde_json::from_slice(&answer(&door, call, request.into()).await).unwrap()
    }

    #[tokio::test]
    async fn requests_are_answered_and_other_texts_are_errors() {
        let version = |text: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":7,"method":"initialize","params":{{"protocolVersion":"{text}",
                    "capabilities":{{}},"clientInfo":{{"name":"a","version":"1"}}}}}}"#
            )
        };
        for known in ["2025-03-26", "2025-06-18", "2025-11-25"] {
            let response = answered(&version(known)).await;
            assert_eq!(response["result"]["protocolVersion"], known, "{response}");
            assert_eq!(response["id"], 7);
        }
        let other = answered(&version("1999-01-01")).await;
        assert!(is_supported(&other["result"]["protocolVersion"]), "{other}");
        let tools = answered(r#"{"jsonrpc":"2.0","id":"x","method":"tools/list"}"#).await;
        assert_eq!(tools["id"], "x");
        assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() == 6));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for (odd, code) in [
            ("", INVALID_REQUEST),
            ("[]", INVALID_REQUEST),
            ("7", INVALID_REQUEST),
            (&deep, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32601),
        ] {
            assert_eq!(answered(odd).await["error"]["code"], code, "{odd:.80}");
        }
    }
}
