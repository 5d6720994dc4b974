//! The engine's way to the tools of its session: a socket on which its MCP server (`windlass-worker mcp`) passes requests
//! to the worker.

use std::io;

use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::settings::McpServerCommand;
use crate::private_dir::PrivateDir;
use crate::tool_socket::{ToolEvent, serve};

/// Tools that may be called again when it is not known whether they were called.
const REPEATABLE_TOOLS: [&str; 3] = ["read_output", "run", "sessions"];

/// The socket and the program that connects to it.
#[derive(Debug, Default)]
pub struct EngineDoor {
    pub dir: Option<PrivateDir>,
    pub requests: Option<mpsc::Receiver<ToolEvent>>,
    pub command: Option<McpServerCommand>,
}

impl EngineDoor {
    pub fn open() -> io::Result<Self> {
        let program = std::env::current_exe()?.into_os_string().into_string();
        let dir = PrivateDir::create("agent")?;
        let path = dir.join("mcp");
        let (Ok(listener), Ok(program), Some(socket)) =
            (UnixListener::bind(&path), program, path.to_str())
        else {
            dir.remove();
            return Ok(Self::default());
        };
        let arguments = vec!["mcp".to_owned(), socket.to_owned()];
        let command = McpServerCommand { program, arguments };
        Ok(Self { dir: Some(dir), requests: Some(serve(listener)), command: Some(command) })
    }
}

/// Whether a request has the same effect when it is sent twice. Code that `run` runs has a key, so it runs once.
pub fn can_repeat(request: &[u8]) -> bool {
    let Ok(request) = serde_json::from_slice::<Value>(request) else { return false };
    let tool = request["params"]["name"].as_str().unwrap_or_default();
    request["method"].as_str() != Some("tools/call") || REPEATABLE_TOOLS.contains(&tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_with_one_effect_are_repeated() {
        for (request, expected) in [
            (r#"{"method":"tools/list"}"#, true),
            (r#"{"method":"tools/call","params":{"name":"run"}}"#, true),
            (r#"{"method":"tools/call","params":{"name":"read_output"}}"#, true),
            (
                r#"{"method":"tools/call","params":{"name":"continue","arguments":{"input":"1"}}}"#,
                false,
            ),
            (r#"{"method":"tools/call","params":{"name":"reset"}}"#, false),
            (r#"{"method":"tools/call"}"#, false),
            ("{", false),
        ] {
            assert_eq!(can_repeat(request.as_bytes()), expected, "{request}");
        }
    }
}
