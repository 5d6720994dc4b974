//! The HTTP side of file operations on a session's workspace: list, read, put, delete, write back, watch. The
//! operations themselves are in `windlass_files` and run on the blocking pool.

mod download;
mod tenant_upload;
mod upload;
pub(super) mod watch;

use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::Response;
use windlass_confine::survey::homes;
use windlass_confine::{ProtectedNames, SurveyInput, names_at};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{
    ApiError, FILE_BYTES_MAX, FileDeleted, FileList, FileWritten, FilesQuery, Session, WatchQuery,
    WriteQuery, WrittenBack,
};
use windlass_protocol::confinement::{Confinement, Control, ControlState, Isolation};
use windlass_protocol::policy::{Policy, Preset, WorkspaceAccess};

use super::App;
use super::body::{Asked, InPath};
use super::reply::{Answer, internal, session_id};
use super::sessions::{ended, live};
use super::transfers::TransferWatch;
use crate::audit::AuditNote;
use crate::failure::Failure;
use crate::session::SessionHandle;
use windlass_files::{
    self as files, FileError, FilePath, FileScope, NewFileOwner, Precondition, Put, Workspace,
    WriteBack, Writer,
};
use windlass_telemetry::FileDirection;

/// Maximum number of files that the record of a write-back names.
const NAMED_FILES_MAX: usize = 16;

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
    note: AuditNote,
    headers: HeaderMap,
) -> Answer<Response> {
    if path == "watch" && !query.content {
        // It tells names and reads no file.
        note.discard();
        return watch::watch(app, session, query).await;
    }
    let watch = TransferWatch::begin(&app, &headers, FileDirection::Download, (&*session, &*path));
    let access = any_access(&app, session).await?;
    let condition = condition(&headers, IfNoneMatch::Ignored)?;
    let opened = on_pool(move || {
        let path = FilePath::file(&path)?;
        let opened = Workspace::open(&access, &app.files)?.file(&path)?;
        if opened.meets(&condition) { Ok(opened) } else { Err(FileError::conflict(path.as_str())) }
    });
    Ok(download::answer(opened.await?, &headers, watch))
}

/// Make or replace a file. Its directories are made; nothing is seen of it until it is whole.
#[utoipa::path(put, path = "/v1/sessions/{session}/files/{path}",
    params(("session" = String, Path), ("path" = String, Path),
        WriteQuery,
        ("If-Match" = Option<String>, Header, description = "the etag that the file must have"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: there must be none")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten), (status = "default", body = ApiError)))]
pub(super) async fn put(
    State(app): State<App>,
    InPath((session, path)): InPath<(String, String)>,
    Asked(query): Asked<WriteQuery>,
    note: AuditNote,
    request: Request,
) -> Answer<Json<FileWritten>> {
    let headers = request.headers();
    let announced = number(headers, &header::CONTENT_LENGTH);
    let mut watch = TransferWatch::begin(&app, headers, FileDirection::Upload, (&*session, &*path));
    let live = live(&app, session);
    let _client = live.as_ref().ok().map(|handle| handle.clients.enter());
    let begin = live.and_then(|handle| {
        let condition = condition(headers, IfNoneMatch::Applies)?;
        let (app, info, owner) = (app.clone(), handle.info(), new_file_owner(&app, &handle));
        Ok(move || {
            let most = tenant_upload::bytes_max(&app.config, &info);
            let mut access = write_access(&app, info, owner, &query);
            access.file_bytes_max = access.file_bytes_max.min(most);
            let path = FilePath::file(&path)?;
            Put::begin(Workspace::open(&access, &app.files)?, path, condition, announced)
        })
    });
    let written = upload::receive(&app, request, begin, Put::finish).await?;
    note.add("bytes", written.bytes);
    if let Some(watch) = &mut watch {
        watch.complete(written.bytes);
    }
    Ok(Json(written))
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
#[utoipa::path(post, path = "/v1/sessions/{session}/files",
    params(("session" = String, Path), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = WrittenBack), (status = "default", body = ApiError)))]
pub(super) async fn write_back(
    State(app): State<App>,
    InPath(session): InPath<String>,
    Asked(query): Asked<WriteQuery>,
    note: AuditNote,
    request: Request,
) -> Answer<Json<WrittenBack>> {
    let live = live(&app, session);
    let _client = live.as_ref().ok().map(|handle| handle.clients.enter());
    let begin = live.map(|handle| {
        let (app, info, owner) = (app.clone(), handle.info(), new_file_owner(&app, &handle));
        move || {
            let access = write_access(&app, info, owner, &query);
            WriteBack::begin(Workspace::open(&access, &app.files)?)
        }
    });
    let done = upload::receive(&app, request, begin, WriteBack::finish).await?;
    note_written(&note, &done);
    Ok(Json(done))
}

/// Adds which files were written and deleted. Of many files only the first ones are named.
fn note_written(note: &AuditNote, done: &WrittenBack) {
    if !note.is_present() {
        return;
    }
    let written = done.written.iter().map(|file| file.path.as_str());
    let deleted = done.deleted.iter().map(|file| file.path.as_str());
    note.add("written_count", done.written.len() as u64);
    note.add("written", written.take(NAMED_FILES_MAX).collect::<serde_json::Value>());
    note.add("deleted_count", done.deleted.len() as u64);
    note.add("deleted", deleted.take(NAMED_FILES_MAX).collect::<serde_json::Value>());
}

/// The access to the files of a session, live or ended.
async fn any_access(app: &App, session: String) -> Answer<FileScope> {
    let id = session_id(session)?;
    let info = match app.sessions.find(&id) {
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
    access_under(app, session.workspace, policy)
}

fn access_under(app: &App, workspace: String, policy: Policy) -> FileScope {
    FileScope {
        workspace: PathBuf::from(workspace),
        hidden: policy.hidden,
        node_dirs: vec![app.config.state_dir.clone(), app.config.runtime_dir.clone()],
        home: std::env::home_dir(),
        file_bytes_max: policy.limits.file_bytes.unwrap_or(u64::MAX).min(FILE_BYTES_MAX),
        writer: Writer::Client,
        new_file_owner: NewFileOwner::Node,
    }
}

/// To whom the files belong that a client makes for this session. In its workspace a session with a user id of its own is
/// the workspace's owner; it could not change root's files there.
fn new_file_owner(app: &App, session: &SessionHandle) -> NewFileOwner {
    match app.host.user_ids.has_one(&session.family) {
        true => NewFileOwner::Workspace,
        false => NewFileOwner::Node,
    }
}

/// The access for a request that writes. Reads the workspace, so it runs on the blocking pool.
fn write_access(
    app: &App,
    session: Session,
    new_file_owner: NewFileOwner,
    query: &WriteQuery,
) -> FileScope {
    let Session { id, workspace, copied_from, policy, confinement, .. } = session;
    let policy = policy.map_or_else(|| Policy::of(Preset::default()), |policy| *policy);
    let writer = if query.within_policy {
        let own = app.config.workspace_of(&id);
        let input = SurveyInput {
            workspace_is_new: copied_from.is_none() && own == Path::new(&workspace),
            workspace: PathBuf::from(&workspace),
            home: std::env::home_dir(),
            homes: homes::homes(),
            programs: homes::programs(),
            ..SurveyInput::default()
        };
        code_writer(&policy, confinement.as_ref(), || names_at(&policy, &input))
    } else {
        Writer::Client
    };
    FileScope { writer, new_file_owner, ..access_under(app, workspace, policy) }
}

/// The writer for changes that the session's code chose.
fn code_writer(
    policy: &Policy,
    confinement: Option<&Confinement>,
    names: impl FnOnce() -> ProtectedNames,
) -> Writer {
    let protects = match confinement {
        // The session has not started a worker yet.
        None => ControlState::Enforced,
        Some(confinement) if confinement.isolation == Isolation::Full => {
            confinement.state(Control::Protected).unwrap_or(ControlState::NotEnforced)
        }
        Some(_) => ControlState::NotAsked,
    };
    // Where the names are not protected, the code may change them, and so may a tool for it.
    let names = match protects {
        ControlState::NotAsked => ProtectedNames::default(),
        ControlState::Enforced | ControlState::NotEnforced => names(),
    };
    // All names were protected at the session's start. Now there are too many to find these again: the code can have made
    // them for that.
    let are_lost = protects == ControlState::Enforced && names.unheld.is_some();
    if are_lost && policy.workspace == WorkspaceAccess::Write {
        return Writer::CodeOfLostNames;
    }
    let protected = names.protected.into_keys().collect();
    Writer::Code { workspace: policy.workspace, protected }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use windlass_confine::ProtectedEntry;
    use windlass_protocol::confinement::ControlReport;

    use super::*;

    #[test]
    fn nothing_is_written_for_code_whose_protected_names_are_lost() {
        let policy = Policy::of(Preset::Workspace);
        let path = PathBuf::from("/h/u/.bashrc");
        let writer = |state, unheld: Option<&str>| {
            let protected = BTreeMap::from([(path.clone(), ProtectedEntry::Link)]);
            let names = ProtectedNames { protected, unheld: unheld.map(str::to_owned) };
            let control = Control::Protected;
            let (mechanism, tested, remedy) = (String::new(), true, None);
            let report = ControlReport { control, state, mechanism, tested, remedy };
            let confinement = Confinement { isolation: Isolation::Full, controls: vec![report] };
            code_writer(&policy, Some(&confinement), || names)
        };
        let code = |protected: &[&PathBuf]| Writer::Code {
            workspace: WorkspaceAccess::Write,
            protected: protected.iter().copied().cloned().collect(),
        };
        let many = Some("there are too many");
        assert_eq!(writer(ControlState::Enforced, None), code(&[&path]));
        assert_eq!(writer(ControlState::Enforced, many), Writer::CodeOfLostNames);
        // The code itself was never kept from all of them.
        assert_eq!(writer(ControlState::NotEnforced, many), code(&[&path]));
        assert_eq!(writer(ControlState::NotAsked, many), code(&[]));
        assert_eq!(code_writer(&policy, None, ProtectedNames::default), code(&[]));
    }
}
