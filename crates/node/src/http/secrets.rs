//! Secrets of the node, and the secret rules of live sessions. No response contains a value.

use axum::Json;
use axum::extract::State;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{
    ApiError, SecretInfo, SecretList, SessionSecretRules, SetSecretRules,
};
use windlass_protocol::policy::{LIST_MAX, SecretName, SecretRule};

use super::App;
use super::body::{InPath, JsonBody, TextBody};
use super::reply::{Answer, bad_request};
use super::sessions::live;
use crate::audit::AuditNote;
use crate::failure::Failure;
use crate::session::{Request, SessionHandle};

/// Maximum number of rules that the journal names when the rules of a session change.
const NAMED_RULES_MAX: usize = 8;

/// Maximum number of rules, present and earlier ones, that the node remembers for a session.
const KNOWN_RULES_MAX: usize = 1024;

/// The secrets of the node, without their values.
#[utoipa::path(get, path = "/v1/secrets", responses((status = 200, body = SecretList)))]
pub(super) async fn list(State(app): State<App>) -> Json<SecretList> {
    Json(app.host.secrets.list())
}

/// Set the value of a secret: the body is the value. Live sessions use it from their next request on.
#[utoipa::path(put, path = "/v1/secrets/{name}", params(("name" = String, Path)),
    request_body(content = String, content_type = "text/plain"),
    responses((status = 200, body = SecretInfo), (status = "default", body = ApiError)))]
pub(super) async fn set(
    State(app): State<App>,
    InPath(name): InPath<String>,
    TextBody(value): TextBody,
) -> Answer<Json<SecretInfo>> {
    let name = secret_name(name)?;
    let set = tokio::task::spawn_blocking(move || app.host.secrets.set(&name, value)).await;
    Ok(Json(set.map_err(|error| Failure::internal(&error.to_string()))??))
}

/// Remove a secret. Requests of live sessions that need it are refused from now on.
#[utoipa::path(delete, path = "/v1/secrets/{name}", params(("name" = String, Path)),
    responses((status = 200, body = SecretList), (status = "default", body = ApiError)))]
pub(super) async fn remove(
    State(app): State<App>,
    InPath(name): InPath<String>,
) -> Answer<Json<SecretList>> {
    let name = secret_name(name)?;
    let removed = tokio::task::spawn_blocking(move || {
        app.host.secrets.remove(&name).map(|()| app.host.secrets.list())
    });
    Ok(Json(removed.await.map_err(|error| Failure::internal(&error.to_string()))??))
}

/// Where a live session's secrets may go.
#[utoipa::path(get, path = "/v1/sessions/{session}/secrets", params(("session" = String, Path)),
    responses((status = 200, body = SessionSecretRules), (status = "default", body = ApiError)))]
pub(super) async fn rules(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<SessionSecretRules>> {
    let handle = live(&app, session)?;
    let secrets = handle.egress.as_ref().and_then(|ledger| ledger.secrets());
    let rules = secrets.map(|secrets| secrets.rules().rules.clone()).unwrap_or_default();
    Ok(Json(SessionSecretRules::new(rules)))
}

/// Replace the secret rules of a live session. Requests that begin later follow the new rules.
#[utoipa::path(put, path = "/v1/sessions/{session}/secrets", params(("session" = String, Path)),
    request_body = SetSecretRules,
    responses((status = 200, body = SessionSecretRules), (status = "default", body = ApiError)))]
pub(super) async fn set_rules(
    State(app): State<App>,
    InPath(session): InPath<String>,
    note: AuditNote,
    JsonBody(request): JsonBody<SetSecretRules>,
) -> Answer<Json<SessionSecretRules>> {
    let handle = live(&app, session)?;
    let SetSecretRules { rules } = request;
    if let Some(parent) = &handle.parent {
        let message = format!("session {} follows the rules of its parent {parent}", handle.id);
        return Err(bad_request(message));
    }
    check(&handle, &rules)?;
    note.add("rules", summary(&rules));
    let Some(ledger) = handle.egress.clone() else { return Err(no_secrets(&handle).into()) };
    if ledger.secrets().is_none() {
        return Err(no_secrets(&handle).into());
    }
    let (family, changed) = (handle.family.clone(), rules.clone());
    let change = move || {
        let Some(secrets) = ledger.secrets() else { return Ok(()) };
        secrets.change_rules(changed, |all| app.host.secrets.live_rules.store(&family, all))
    };
    let changed = tokio::task::spawn_blocking(change).await;
    changed.map_err(|error| Failure::internal(&error.to_string()))?.map_err(|error| {
        Failure::while_making(format_args!("cannot store the secret rules of a session"), &error)
    })?;
    // In the journal, so that a reader of the session's events sees the change.
    let changed =
        Request::Egress { host: "*".to_owned(), port: 0, allowed: true, reason: summary(&rules) };
    handle.send(changed).await?;
    Ok(Json(SessionSecretRules::new(rules)))
}

/// The new rules for the journal. Of a long list only the first ones are named.
fn summary(rules: &[SecretRule]) -> String {
    let named = rules.iter().take(NAMED_RULES_MAX);
    let named = named.map(|rule| format!("{} to {}", rule.name, rule.to)).collect::<Vec<_>>();
    let more = match rules.len().saturating_sub(NAMED_RULES_MAX) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("secret rules changed: {}{more}", named.join(", "))
}

fn secret_name(text: String) -> Answer<SecretName> {
    SecretName::parse(text).map_err(|error| bad_request(error.to_string()))
}

fn no_secrets(handle: &SessionHandle) -> Failure {
    let message = format!(
        "session {} was made without secret rules, so its code does not trust the proxy's certificates; create a \
         session with policy.secrets",
        handle.id
    );
    Failure::new(ErrorCode::BadRequest, message)
}

/// Checks new rules: each is valid, and the session may reach its host.
fn check(handle: &SessionHandle, rules: &[SecretRule]) -> Answer<()> {
    if rules.len() > LIST_MAX {
        return Err(bad_request(format!("the list has more than {LIST_MAX} rules")));
    }
    let known =
        handle.egress.as_ref().and_then(|ledger| ledger.secrets()).map(|secrets| secrets.rules());
    if known.is_some_and(|known| known.rules.len() + known.past.len() > KNOWN_RULES_MAX) {
        return Err(bad_request("the session has had too many secret rules; create a new session"));
    }
    for rule in rules {
        rule.check().map_err(|error| bad_request(error.to_string()))?;
        let hosts = handle.egress.as_ref().map(|ledger| ledger.rules()).unwrap_or_default();
        let (host, port) = (&rule.to.host, rule.to.port);
        if !hosts.iter().any(|allowed| allowed.matches(host, port)) {
            return Err(bad_request(format!(
                "the session may not reach {host}:{port}; create it with policy.network.hosts: [\"{host}:{port}\"]"
            )));
        }
    }
    Ok(())
}
