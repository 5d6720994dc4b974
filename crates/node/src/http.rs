//! The HTTP door: `/v1` on a unix socket, on TCP for clients with the token, and for other nodes of a fleet. TCP is
//! encrypted with TLS if the node has a certificate for it, and always for other nodes. Translates requests into
//! messages to sessions and reads of the journal, and their results into JSON. Decides nothing itself.

mod audit;
mod audit_routes;
mod body;
mod certificate;
mod connection_slots;
mod console;
mod console_gate;
mod creation;
mod doctor;
mod door_tokens;
mod egress;
mod environments;
mod events;
mod file_version;
mod files;
mod fleet;
mod fleet_view;
mod handshake;
mod head_wait;
mod intake;
mod node;
pub mod openapi;
mod output;
mod overview;
pub(crate) mod peers;
mod read_log;
mod replicated;
mod reply;
mod scope;
mod scrape;
mod secrets;
mod server;
mod session_list;
mod sessions;
mod site;
mod tcp;
mod tenant;
#[cfg(test)]
mod tls_sides;
mod token_scopes;
mod tools;
mod tools_list;
mod transfers;
mod turns;
mod usage;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post, put};

use crate::context::Context;
use crate::fleet::load::LOAD;
use crate::session_rows::OVERVIEW;

pub(crate) use certificate::DoorCertificate;
pub use certificate::DoorCertificateError;
pub(crate) use console_gate::CONSOLE_KEY;
pub(crate) use door_tokens::{DoorTokens, sha256};
pub(crate) use server::{Listener, serve};
pub(crate) use site::DoorScheme;
pub(crate) use tcp::TcpGate;

type App = Arc<Context>;

fn router(context: App) -> Router {
    Router::new()
        .route("/v1/sessions", post(sessions::create).get(session_list::list))
        .route("/v1/sessions/{session}", get(sessions::look).delete(sessions::close))
        .route("/v1/sessions/{session}/reset", post(sessions::reset))
        .route("/v1/sessions/{session}/fork", post(sessions::fork))
        .route("/v1/sessions/{session}/interrupt", post(turns::interrupt_running))
        .route("/v1/sessions/{session}/turns", post(turns::submit))
        .route("/v1/sessions/{session}/turns/{turn}", get(turns::look))
        .route("/v1/sessions/{session}/turns/{turn}/interrupt", post(turns::interrupt))
        .route("/v1/sessions/{session}/turns/{turn}/input", post(turns::input))
        .route("/v1/sessions/{session}/events", get(events::events))
        .route("/v1/sessions/{session}/egress", get(egress::log))
        .route("/v1/sessions/{session}/secrets", get(secrets::rules).put(secrets::set_rules))
        .route("/v1/secrets", get(secrets::list))
        .route("/v1/secrets/{name}", put(secrets::set).delete(secrets::remove))
        .route("/v1/sessions/{session}/files", get(files::list).post(files::write_back))
        .route(
            "/v1/sessions/{session}/files/{*path}",
            get(files::content).put(files::put).delete(files::delete),
        )
        .route("/v1/sessions/{session}/output", get(output::range))
        .route("/v1/sessions/{session}/output/search", get(output::search))
        .route("/v1/sessions/{session}/displays/{seq}", get(output::display))
        .route("/v1/tools/host", get(tools::attach))
        .route("/v1/sessions/{session}/tools", get(tools_list::list))
        .route("/v1/environments", get(environments::list).post(environments::create))
        .route("/v1/environments/{name}", get(environments::look).delete(environments::remove))
        .route(console_gate::LOGINS, post(console::offer_login))
        .route(console_gate::SESSION, post(console::log_in).delete(console::log_out))
        .route(OVERVIEW, get(overview::overview))
        .route("/v1/usage", get(usage::usage))
        .route("/v1/workers", get(node::workers))
        .route("/v1/health", get(node::health))
        .route("/v1/version", get(node::version))
        .route("/v1/metrics", get(node::metrics))
        // Where Prometheus looks unless it is configured otherwise.
        .route("/metrics", get(node::metrics))
        .route("/v1/openapi.json", get(node::openapi))
        .route("/v1/node/disk", get(node::disk))
        .route("/v1/node/doctor", post(doctor::doctor))
        .route("/v1/node/prune", post(node::prune))
        .route("/v1/node/stop", post(node::stop))
        .route("/v1/fleet/nodes", get(fleet_view::nodes))
        .route("/v1/fleet/nodes/{node}/cordon", post(fleet_view::cordon_node))
        .route("/v1/fleet/status", get(fleet_view::status))
        .route(fleet_view::CORDON, post(fleet_view::cordon))
        .route(LOAD, get(fleet_view::load))
        .route(peers::JOIN, post(fleet::join))
        .route(peers::RENEW, post(fleet::renew))
        .fallback(reply::no_page)
        .method_not_allowed_fallback(reply::no_method)
        .with_state(context)
}
