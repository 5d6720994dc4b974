//! The node itself: health, version, environments, metrics, disk usage, stop.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};
use windlass_protocol::api::{ApiError, NodeStatus, StopNode, WorkerList};
use windlass_protocol::disk::{DiskUse, PruneRequest, Pruned};

use super::App;
use super::body::JsonBody;
use super::openapi::Document;
use super::reply::Answer;
use super::scrape;
use super::tenant::RequestTenant;
use crate::audit::AuditNote;
use crate::disk;
use crate::failure::Failure;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    status: &'static str,
    /// `behind`: records of the audit log could not be written. Only for clients without a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<&'static str>,
}

/// Whether the node answers.
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health)))]
pub(super) async fn health(
    State(app): State<App>,
    RequestTenant(tenant): RequestTenant,
) -> Json<Health> {
    let is_behind = tenant.is_none() && app.serving.audit.log.standing().is_behind;
    Json(Health { status: "ok", audit: is_behind.then_some("behind") })
}

/// Which node this is. A client of a tenant sees no directories and no other tenants' sessions.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = NodeStatus)))]
pub(super) async fn version(
    State(app): State<App>,
    RequestTenant(tenant): RequestTenant,
) -> Json<NodeStatus> {
    let status = app.status();
    let Some(tenant) = tenant else { return Json(status) };
    let handles = app.sessions.handles();
    let own = handles.iter().filter(|handle| handle.id.is_of(Some(&tenant))).count();
    Json(NodeStatus {
        sessions: own,
        runtime_dir: String::new(),
        state_dir: String::new(),
        socket: None,
        listen: None,
        storage: None,
        tenant: Some(tenant),
        ..status
    })
}

/// The kinds of worker that sessions can request, and what is missing for them on this machine.
#[utoipa::path(get, path = "/v1/workers",
    responses((status = 200, body = WorkerList), (status = "default", body = ApiError)))]
pub(super) async fn workers(State(app): State<App>) -> Answer<Json<WorkerList>> {
    let workers = app.host.workers.clone();
    // The search for interpreters touches the disk and may run a program.
    let listed = tokio::task::spawn_blocking(move || workers.list()).await;
    Ok(Json(listed.map_err(|error| Failure::internal(&error.to_string()))?))
}

/// Figures in Prometheus' text format.
#[utoipa::path(get, path = "/v1/metrics",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn metrics(State(app): State<App>) -> Answer<Response> {
    let text = scrape::scrape(&app).await?;
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((content_type, text).into_response())
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json",
    responses((status = 200, content_type = "application/json", body = String)))]
pub(super) async fn openapi() -> Response {
    Json(Document::openapi()).into_response()
}

/// What the node has on the disk, by kind.
#[utoipa::path(get, path = "/v1/node/disk",
    responses((status = 200, body = DiskUse), (status = "default", body = ApiError)))]
pub(super) async fn disk(State(app): State<App>) -> Answer<Json<DiskUse>> {
    Ok(Json(disk::usage(&app).await?))
}

/// Remove ended sessions, and directories that no session needs. No live session is touched.
#[utoipa::path(post, path = "/v1/node/prune", request_body = PruneRequest,
    responses((status = 200, body = Pruned), (status = "default", body = ApiError)))]
pub(super) async fn prune(
    State(app): State<App>,
    JsonBody(request): JsonBody<PruneRequest>,
) -> Answer<Json<Pruned>> {
    Ok(Json(disk::prune(&app, request).await?))
}

/// Stop the node, with its sessions or without.
#[utoipa::path(post, path = "/v1/node/stop", request_body = StopNode,
    responses((status = 200, body = NodeStatus)))]
pub(super) async fn stop(
    State(app): State<App>,
    note: AuditNote,
    JsonBody(stop): JsonBody<StopNode>,
) -> Json<NodeStatus> {
    let status = app.status();
    note.add("sessions", serde_json::json!(stop.sessions));
    // Now: the node may end before the answer is sent.
    note.send();
    app.stop.send_replace(Some(stop.sessions));
    Json(status)
}
