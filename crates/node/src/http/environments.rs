//! Environments: the interpreters with a pool of workers, and the package environments that the node builds.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use windlass_protocol::api::ApiError;
use windlass_protocol::environments::{EnvironmentList, EnvironmentsQuery};
use windlass_protocol::limits::WAIT_MS_MAX;
use windlass_protocol::packages::{CreatePackageEnvironment, PackageEnvironment};

use super::App;
use super::body::{Asked, InPath, JsonBody};
use super::reply::{Answer, about_to_stop, internal};
use crate::audit::AuditNote;
use crate::packages;

/// For which interpreters workers are kept ready, and which package environments there are.
#[utoipa::path(get, path = "/v1/environments", params(EnvironmentsQuery),
    responses((status = 200, body = EnvironmentList)))]
pub(super) async fn list(
    State(app): State<App>,
    Asked(query): Asked<EnvironmentsQuery>,
) -> Json<EnvironmentList> {
    let wait = Duration::from_millis(query.wait_ms.min(WAIT_MS_MAX));
    // After the wait, the reply shows the current state.
    let _ = tokio::time::timeout(wait, app.host.provision.settled()).await;
    let packages = app.host.packages.list();
    Json(EnvironmentList { packages, ..app.host.provision.environments() })
}

/// Find a package environment, or build it. The session `build` of the reply shows the progress.
#[utoipa::path(post, path = "/v1/environments", request_body = CreatePackageEnvironment,
    responses((status = 200, body = PackageEnvironment), (status = "default", body = ApiError)))]
pub(super) async fn create(
    State(app): State<App>,
    note: AuditNote,
    JsonBody(wanted): JsonBody<CreatePackageEnvironment>,
) -> Answer<Json<PackageEnvironment>> {
    if app.stop.borrow().is_some() {
        return Err(about_to_stop().into());
    }
    let environment = packages::ensure(&app, wanted).await?;
    note.add("name", environment.name.as_str());
    Ok(Json(environment))
}

/// A package environment, with its lock file.
#[utoipa::path(get, path = "/v1/environments/{name}", params(("name" = String, Path)),
    responses((status = 200, body = PackageEnvironment), (status = "default", body = ApiError)))]
pub(super) async fn look(
    State(app): State<App>,
    InPath(name): InPath<String>,
) -> Answer<Json<PackageEnvironment>> {
    Ok(Json(app.host.packages.look(&name)?))
}

/// Remove a package environment that no live session uses.
#[utoipa::path(delete, path = "/v1/environments/{name}", params(("name" = String, Path)),
    responses((status = 200, body = PackageEnvironment), (status = "default", body = ApiError)))]
pub(super) async fn remove(
    State(app): State<App>,
    InPath(name): InPath<String>,
) -> Answer<Json<PackageEnvironment>> {
    let removed = tokio::task::spawn_blocking(move || {
        app.host.packages.remove(&name, &|| packages::in_use(&app))
    })
    .await;
    Ok(Json(removed.map_err(internal)??))
}
