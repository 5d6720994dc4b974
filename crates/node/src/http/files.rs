//! Files of a session's workspace at the HTTP door: list, read, put, delete, write back, watch. The
//! acts themselves are in `crate::files`, and run on the pool; here is their HTTP.

mod download;
mod upload;
pub(super) mod watch;

use std::path::PathBuf;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::Response;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{
    ApiError, FILE_BYTES_MAX, FileDeleted, FileList, FileWritten, FilesQuery, Session, WatchQuery,
    WrittenBack,
};
use windlass_protocol::policy::{Policy, Preset};

use super::App;
use super::body::{Asked, InPath};
use super::reply::{Answer, internal, session_id};
use super::sessions::{ended, live, local};
use crate::failure::Failure;
use windlass_files::{
    self as files, Condition, FileError, FilePath, Place, Put, Workspace, WriteBack,
};

/// The files in a directory of the workspace, also of an ended session.
#[utoipa::path(get, path = "/v1/sessions/{session}/files",
    params(("session" = String, Path), FilesQuery),
    responses((status = 200, body = FileList), (status = "default", body = ApiError)))]
pub(super) async fn list(
    State(app): State<App>,
    InPath(session): InPath<String>,
    Asked(query): Asked<FilesQuery>,
) -> Answer<Json<FileList>> {
    let place = any_place(&app, session).await?;
    let listed = on_pool(move || files::list(&Workspace::open(&place, &app.files)?, &query));
    listed.await.map(Json)
}

/// A file's content, whole or one range of it, also of an ended session.
#[utoipa::path(get, path = "/v1/sessions/{session}/files/{path}",
    params(("session" = String, Path),
        ("path" = String, Path, description = "in the workspace; slashes are part of it"),
        ("Range" = Option<String>, Header, description = "one range of bytes"),
        ("If-Range" = Option<String>, Header, description = "the range, if the etag is this"),
        ("If-Match" = Option<String>, Header, description = "etags that the file must have")),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
        (status = "default", body = ApiError)))]
pub(super) async fn content(
    State(app): State<App>,
    InPath((session, path)): InPath<(String, String)>,
    Asked(query): Asked<WatchQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    if path == "watch" && !query.content {
        return watch::watch(app, session, query).await;
    }
    let place = any_place(&app, session).await?;
    let condition = condition(&headers, Absence::NotAsked)?;
    let opened = on_pool(move || {
        let path = FilePath::file(&path)?;
        let opened = Workspace::open(&place, &app.files)?.file(&path)?;
        if opened.meets(&condition) { Ok(opened) } else { Err(FileError::conflict(path.as_str())) }
    });
    Ok(download::answer(opened.await?, &headers))
}

/// Make or replace a file. Its directories are made; nothing is seen of it until it is whole.
#[utoipa::path(put, path = "/v1/sessions/{session}/files/{path}",
    params(("session" = String, Path), ("path" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the etag that the file must have"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: there must be none")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten), (status = "default", body = ApiError)))]
pub(super) async fn put(
    State(app): State<App>,
    InPath((session, path)): InPath<(String, String)>,
    request: Request,
) -> Answer<Json<FileWritten>> {
    let headers = request.headers();
    let announced = number(headers, &header::CONTENT_LENGTH);
    let live = live(&app, session);
    let _client = live.as_ref().ok().map(|handle| handle.clients.enter());
    let begin = live.map(|handle| place(&app, handle.info())).and_then(|place| {
        let condition = condition(headers, Absence::MayBeAsked)?;
        let app = app.clone();
        Ok(move || {
            let path = FilePath::file(&path)?;
            Put::begin(Workspace::open(&place, &app.files)?, path, condition, announced)
        })
    });
    upload::receive(&app, request, begin, Put::finish).await.map(Json)
}

/// Remove a file, a link, or an empty directory.
#[utoipa::path(delete, path = "/v1/sessions/{session}/files/{path}",
    params(("session" = String, Path), ("path" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the etag that the file must have")),
    responses((status = 200, body = FileDeleted), (status = "default", body = ApiError)))]
pub(super) async fn delete(
    State(app): State<App>,
    InPath((session, path)): InPath<(String, String)>,
    headers: HeaderMap,
) -> Answer<Json<FileDeleted>> {
    let handle = live(&app, session)?;
    handle.clients.noticed();
    let place = place(&app, handle.info());
    let condition = condition(&headers, Absence::NotAsked)?;
    let removed = on_pool(move || {
        let path = FilePath::file(&path)?;
        files::remove(&Workspace::open(&place, &app.files)?, path, condition)
    });
    removed.await.map(Json)
}

/// Write many files back, all or none. The body is a sequence of frames as workers use them, each
/// with a `FileChange` as its header.
#[utoipa::path(post, path = "/v1/sessions/{session}/files", params(("session" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = WrittenBack), (status = "default", body = ApiError)))]
pub(super) async fn write_back(
    State(app): State<App>,
    InPath(session): InPath<String>,
    request: Request,
) -> Answer<Json<WrittenBack>> {
    let live = live(&app, session);
    let _client = live.as_ref().ok().map(|handle| handle.clients.enter());
    let begin = live.map(|handle| place(&app, handle.info())).map(|place| {
        let app = app.clone();
        move || WriteBack::begin(Workspace::open(&place, &app.files)?)
    });
    upload::receive(&app, request, begin, WriteBack::finish).await.map(Json)
}

/// Where a session's files are, whether it lives or has ended.
async fn any_place(app: &App, session: String) -> Answer<Place> {
    let id = session_id(session)?;
    let info = match local(app, &id)? {
        Some(handle) => {
            handle.clients.noticed();
            handle.info()
        }
        None => ended(app, &id).await?,
    };
    Ok(place(app, info))
}

fn place(app: &App, session: Session) -> Place {
    // Whoever has none was made by a node that knew of none: the usual is hidden.
    let policy = session.policy.map_or_else(|| Policy::of(Preset::default()), |policy| *policy);
    Place {
        workspace: PathBuf::from(session.workspace),
        hidden: policy.hidden,
        own: vec![app.config.state_dir.clone(), app.config.runtime_dir.clone()],
        home: std::env::home_dir(),
        file_bytes_max: policy.limits.file_bytes.unwrap_or(u64::MAX).min(FILE_BYTES_MAX),
    }
}

/// Does what touches the disk where nobody waits for it.
async fn on_pool<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(act).await.map_err(internal)?;
    done.map_err(|error| Failure::from(error).into())
}

/// Whether `If-None-Match` means something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    MayBeAsked,
    NotAsked,
}

fn condition(headers: &HeaderMap, absence: Absence) -> Answer<Condition> {
    let text = |name: HeaderName| {
        let value = headers.get(name)?;
        // What is no text is no etag of ours, and so never holds.
        Some(value.to_str().unwrap_or("?"))
    };
    let if_none_match =
        if absence == Absence::MayBeAsked { text(header::IF_NONE_MATCH) } else { None };
    Condition::parse(text(header::IF_MATCH), if_none_match)
        .map_err(|error| Failure::from(error).into())
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        if let FileError::Failed { path, cause } | FileError::NoWorkspace { path, cause } = &error
            && let Some(failure) =
                Self::of_machine(format_args!("the node cannot reach {path:?}"), cause)
        {
            return failure;
        }
        if error.code() == ErrorCode::Internal {
            tracing::error!(%error, "a request about a file failed");
        }
        Self::new(error.code(), error.to_string())
    }
}
