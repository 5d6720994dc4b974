//! The door over streamable HTTP: the service that a node mounts. It keeps no MCP sessions in any
//! revision: each call holds everything that it needs, so no session can leak.

use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::door::Door;

/// The path of the service.
pub const PATH: &str = "/mcp";

/// The largest request body.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Origins of this machine. Other origins are refused, as the node's gate refuses them.
const OUR_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// The HTTP service that answers MCP requests.
pub type McpService = StreamableHttpService<Door, NeverSessionManager>;

/// Builds the service. It does not authenticate: the node's gate has checked the token, the host
/// and the origin.
pub fn service(door: Door) -> McpService {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .with_allowed_origins(OUR_ORIGINS)
        .with_max_request_body_bytes(REQUEST_BYTES_MAX);
    let made = move || Ok(door.clone());
    StreamableHttpService::new(made, NeverSessionManager::default().into(), config)
}
