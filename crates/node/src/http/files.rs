//! The HTTP side of file operations on a session's workspace: list, read, put, delete, write back, watch. The
//! operations themselves are in `windlass_files` and run on the blocking pool.

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
    self as files, FileError, FilePath, FileScope, Precondition, Put, Workspace, WriteBack,
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
    let access = any_access(&app, session).await?;
    let listed = on_pool(move || files::list(&Workspace::open(&access, &app.files)?, &query));
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
    let access = any_access(&app, session).await?;
    let condition = condition(&headers, IfNoneMatch::Ignored)?;
    let opened = on_pool(move || {
        let path = FilePath::file(&path)?;
        let opened = Workspace::open(&access, &app.files)?.file(&path)?;
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
    let begin = live.map(|handle| access(&app, handle.info())).and_then(|access| {
        let condition = condition(headers, IfNoneMatch::Applies)?;
        let app = app.clone();
        Ok(move || {
            let path = FilePath::file(&path)?;
            Put::begin(Workspace::open(&access, &app.files)?, path, condition, announced)
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
    let access = access(&app, handle.info());
    let condition = condition(&headers, IfNoneMatch::Ignored)?;
    let removed = on_pool(move || {
        let path = FilePath::file(&path)?;
        files::remove(&Workspace::open(&access, &app.files)?, path, condition)
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
    let begin = live.map(|handle| access(&app, handle.info())).map(|access| {
        let app = app.clone();
        move || WriteBack::begin(Workspace::open(&access, &app.files)?)
    });
    upload::receive(&app, request, begin, WriteBack::finish).await.map(Json)
}

/// The access to the files of a session, live or ended.
async fn any_access(app: &App, session: String) -> Answer<FileScope> {
    let id = session_id(session)?;
    let info = match local(app, &id)? {
        Some(handle) => {
            handle.clients.noticed();
            handle.info()
        }
        None => ended(app, &id).await?,
    };
    Ok(access(app, info))
}

fn access(app: &App, session: Session) -> FileScope {
    // A session without a policy was made by an older node; the default policy applies.
    let policy = session.policy.map_or_else(|| Policy::of(Preset::default()), |policy| *policy);
    FileScope {
        workspace: PathBuf::from(session.workspace),
        hidden: policy.hidden,
        node_dirs: vec![app.config.state_dir.clone(), app.config.runtime_dir.clone()],
        home: std::env::home_dir(),
        file_bytes_max: policy.limits.file_bytes.unwrap_or(u64::MAX).min(FILE_BYTES_MAX),
    }
}

/// Runs disk work on the blocking pool.
async fn on_pool<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(internal)?;
    done.map_err(|error| Failure::from(error).into())
}

/// Whether `If-None-Match` applies to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfNoneMatch {
    Applies,
    Ignored,
}

fn condition(headers: &HeaderMap, if_none_match: IfNoneMatch) -> Answer<Precondition> {
    let text = |name: HeaderName| {
        let value = headers.get(name)?;
        // A value that is not text is no etag of this node, so it never matches.
        Some(value.to_str().unwrap_or("?"))
    };
    let if_none_match = match if_none_match {
        IfNoneMatch::Applies => text(header::IF_NONE_MATCH),
        IfNoneMatch::Ignored => None,
    };
    Precondition::parse(text(header::IF_MATCH), if_none_match)
        .map_err(|error| Failure::from(error).into())
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        if let FileError::Failed { path, cause } | FileError::NoWorkspace { path, cause } = &error
            && let Some(failure) =
                Self::of_machine(format_args!("the node cannot access {path:?}"), cause)
        {
            return failure;
        }
        if error.code() == ErrorCode::Internal {
            tracing::error!(%error, "a file operation failed");
        }
        Self::new(error.code(), error.to_string())
    }
}
