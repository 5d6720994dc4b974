//! The door over streamable HTTP: the service that a node mounts. It keeps no sessions of the
//! protocol's, in any revision: a call says all that it needs, and there is nothing to leak.

use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::door::Door;

/// Where it is mounted.
pub const PATH: &str = "/mcp";

/// The longest request.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Pages of this machine; those of other sites are refused, as the node's gate refuses them.
const OUR_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// What answers MCP over HTTP.
pub type McpService = StreamableHttpService<Door, NeverSessionManager>;

/// The service. Whose requests come in is the node's to say: its gate has checked the token, the
/// host and the origin.
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
