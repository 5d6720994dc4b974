//! Requests about the fleet: its nodes, the standing and the load of this node, and the cordon of a node. Any node
//! answers; only a cordon is passed on.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use windlass_client::TokenScope;
use windlass_protocol::NodeName;
use windlass_protocol::api::ApiError;
use windlass_protocol::fleet_view::{CordonState, FleetNodeList, FleetStatus, NodeLoad, SetCordon};

use super::App;
use super::body::{InPath, JsonBody};
use super::reply::{Answer, Refusal, bad_request, internal};
use crate::audit::AuditNote;
use crate::fleet::asking::{PeerQuestion, ask};
use crate::fleet::{FleetNode, load, view};

/// Where a node is cordoned.
pub(super) const CORDON: &str = "/v1/fleet/cordon";

/// How long another node may take to write its cordon.
const CORDON_WAIT: Duration = Duration::from_secs(5);

/// The fleet of this node.
pub(super) fn fleet_of(app: &App) -> Answer<&Arc<FleetNode>> {
    app.fleet().ok_or_else(no_fleet)
}

fn no_fleet() -> Refusal {
    bad_request("this node has no fleet; `windlass fleet join` lets it join one")
}

/// The load of this node, for other nodes. Not a part of the documented API.
pub(super) async fn load(State(app): State<App>) -> Answer<Json<NodeLoad>> {
    Ok(Json(load::measure(&app, fleet_of(&app)?)))
}

/// The nodes of the fleet, with their load.
#[utoipa::path(get, path = "/v1/fleet/nodes",
    responses((status = 200, body = FleetNodeList), (status = "default", body = ApiError)))]
pub(super) async fn nodes(State(app): State<App>) -> Answer<Json<FleetNodeList>> {
    Ok(Json(view::nodes(&app, fleet_of(&app)?).await))
}

/// How this node stands in its fleet.
#[utoipa::path(get, path = "/v1/fleet/status",
    responses((status = 200, body = FleetStatus), (status = "default", body = ApiError)))]
pub(super) async fn status(State(app): State<App>) -> Answer<Json<FleetStatus>> {
    Ok(Json(view::status(&app, fleet_of(&app)?).await))
}

/// Cordon this node, so that it takes no new sessions, or let it take sessions again.
#[utoipa::path(post, path = "/v1/fleet/cordon", request_body = SetCordon,
    responses((status = 200, body = CordonState), (status = "default", body = ApiError)))]
pub(super) async fn cordon(
    State(app): State<App>,
    note: AuditNote,
    JsonBody(set): JsonBody<SetCordon>,
) -> Answer<Json<CordonState>> {
    note.add("on", set.on);
    cordon_here(&app, set).await.map(Json)
}

/// Cordon a node of the fleet, so that it takes no new sessions, or let it take sessions again.
#[utoipa::path(post, path = "/v1/fleet/nodes/{node}/cordon", params(("node" = String, Path)),
    request_body = SetCordon,
    responses((status = 200, body = CordonState), (status = "default", body = ApiError)))]
pub(super) async fn cordon_node(
    State(app): State<App>,
    InPath(node): InPath<String>,
    note: AuditNote,
    JsonBody(set): JsonBody<SetCordon>,
) -> Answer<Json<CordonState>> {
    note.add("on", set.on);
    let fleet = fleet_of(&app)?;
    let node = NodeName::parse(node).map_err(|error| bad_request(error.to_string()))?;
    if node == *fleet.name() {
        return cordon_here(&app, set).await.map(Json);
    }
    if !view::others(fleet).iter().any(|other| other.node == node) {
        return Err(unknown_node(&node));
    }
    let question = PeerQuestion {
        method: Method::POST,
        target: CORDON.to_owned(),
        body: serde_json::to_vec(&set).map_err(internal)?.into(),
        // The client's own token had this scope, or the request would not be here.
        scope: TokenScope::Admin,
        wait: CORDON_WAIT,
    };
    Ok(Json(ask(fleet, &node, question).await?))
}

pub(super) fn unknown_node(node: &NodeName) -> Refusal {
    bad_request(format!("the fleet has no node {node}; `windlass fleet nodes` lists its nodes"))
}

async fn cordon_here(app: &App, set: SetCordon) -> Answer<CordonState> {
    let fleet = fleet_of(app)?.clone();
    let node = fleet.name().clone();
    tokio::task::spawn_blocking(move || fleet.set_cordon(set.on)).await.map_err(internal)??;
    tracing::info!(cordoned = set.on, "the cordon of this node was set");
    Ok(CordonState { node, cordoned: set.on, sessions: app.sessions.count() as u64 })
}
