//! The engine's way to the tools of its session: a socket on which its MCP server (`windlass-worker mcp`) passes requests
//! to the worker.

use std::io;

use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::settings::McpServerCommand;
use crate::private_dir::PrivateDir;
use crate::tool_socket::{ToolEvent, serve};

/// The socket and the program that connects to it.
#[derive(Debug, Default)]
pub struct EngineDoor {
    pub dir: Option<PrivateDir>,
    pub requests: Option<mpsc::Receiver<ToolEvent>>,
    pub command: Option<McpServerCommand>,
}

impl EngineDoor {
    pub fn open() -> io::Result<Self> {
        let dir = PrivateDir::create("agent")?;
        let path = dir.join("mcp");
        let program = std::env::current_exe()?.into_os_string().into_string();
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
