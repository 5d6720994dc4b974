//! Which session a call works in: found by its name, or made. An id is used once, so a name's next
//! session has the next number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use windlass_client::{Client, ClientError, WhichSessions};
use windlass_protocol::api::{CreateSession, Session, SessionState};
use windlass_protocol::{ErrorCode, SessionId};

use crate::call::ClientCall;
use crate::door::Door;
use crate::names::{SessionTarget, id_of, use_of};
use crate::reply::Fault;

/// Names whose session is remembered. More are looked up again.
const CACHED_MAX: usize = 1024;

/// How long a client's session stays without it and without a turn: until it comes back the next day. The
/// next call after that gets a new session, and is told so.
const IDLE_S: u64 = 24 * 3600;

/// How often a session is made while others make and end it at the same time.
const TRIES_MAX: usize = 8;

/// Sessions that were there when they were last used, by name.
#[derive(Debug, Default)]
pub(crate) struct SessionCache {
    ids: Mutex<HashMap<String, SessionId>>,
}

/// What a call wants of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Work,
}

/// A session to work in.
#[derive(Debug)]
pub(crate) struct CallSession {
    pub id: SessionId,
    /// What its user should know: that it is new, and why.
    pub note: Option<String>,
    name: Option<String>,
}

impl SessionCache {
    fn get(&self, name: &str) -> Option<SessionId> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn put(&self, name: &str, id: &SessionId) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() >= CACHED_MAX {
            ids.clear();
        }
        ids.insert(name.to_owned(), id.clone());
    }

    fn forget(&self, name: &str) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// The session that a call names, or its client's own; made if there is none.
pub(crate) async fn find_or_make(
    door: &Door,
    call: &ClientCall,
    name: Option<&str>,
) -> Result<CallSession, Fault> {
    match call.scope.session(name)? {
        SessionTarget::ById(id) => {
            check_scope(call, &id, Intent::Work)?;
            Ok(CallSession { id, note: None, name: None })
        }
        SessionTarget::Own { name, or } => {
            if let Some(id) = door.shared.session_cache.get(&name) {
                return Ok(CallSession { id, note: None, name: Some(name) });
            }
            let client = door.client().await?;
            let (id, note) = match live(client, &name, or.as_ref()).await? {
                // By its whole id: not one to work in, and no name for a new one either.
                Some(id) if Some(&id) == or.as_ref() => return Err(Fault::Foreign(id)),
                Some(id) => (id, None),
                None => make(door, client, call, &name).await?,
            };
            door.shared.session_cache.put(&name, &id);
            Ok(CallSession { id, note, name: Some(name) })
        }
    }
}

/// The session that a call names, or its client's own, which has to be there.
pub(crate) async fn find(
    door: &Door,
    call: &ClientCall,
    name: Option<&str>,
    intent: Intent,
) -> Result<SessionId, Fault> {
    match call.scope.session(name)? {
        SessionTarget::ById(id) => {
            check_scope(call, &id, intent)?;
            Ok(id)
        }
        SessionTarget::Own { name, or } => {
            if let Some(id) = door.shared.session_cache.get(&name) {
                return Ok(id);
            }
            let or = or.filter(|id| check_scope(call, id, intent).is_ok());
            let found = live(door.client().await?, &name, or.as_ref()).await?;
            found.ok_or(Fault::NoSession(name))
        }
    }
}

/// The session that was meant is gone: the next call looks for another one. Whether that is worth
/// trying again with.
pub(crate) fn forget(door: &Door, session: &CallSession) -> bool {
    if let Some(name) = &session.name {
        door.shared.session_cache.forget(name);
    }
    session.name.is_some()
}

pub(crate) fn is_over(error: &ClientError) -> bool {
    matches!(error.api_code(), Some(ErrorCode::SessionEnded | ErrorCode::SessionNotFound))
}

/// Code runs in the client's own sessions, which have the policy that its user chose for it; another
/// one may be looser. Others' output may be read, unless the client has a policy of its own.
pub(crate) fn check_scope(call: &ClientCall, id: &SessionId, intent: Intent) -> Result<(), Fault> {
    let reads = intent == Intent::Read && call.policy.is_none();
    match reads || call.scope.owns(id) {
        true => Ok(()),
        false => Err(Fault::Foreign(id.clone())),
    }
}

/// The name's live session, or else the live one that has the id `or`.
async fn live(
    client: &Client,
    name: &str,
    or: Option<&SessionId>,
) -> Result<Option<SessionId>, Fault> {
    let sessions = client.sessions(WhichSessions::Live).await?.sessions;
    let live = || sessions.iter().filter(|session| session.state != SessionState::Ended);
    let newest = live()
        .filter_map(|session| Some((use_of(name, &session.id)?, &session.id)))
        .max_by_key(|(number, _)| *number);
    let newest = newest.map(|(_, id)| id);
    Ok(newest.or_else(|| live().map(|session| &session.id).find(|id| or == Some(id))).cloned())
}

async fn make(
    door: &Door,
    client: &Client,
    call: &ClientCall,
    name: &str,
) -> Result<(SessionId, Option<String>), Fault> {
    let before = last_use(client, name).await?;
    // Somebody has made it since it was looked for.
    if let Some((_, session)) = before.as_ref().filter(|(_, it)| it.state != SessionState::Ended) {
        return Ok((session.id.clone(), None));
    }
    let mut number = before.as_ref().map_or(1, |(number, _)| number + 1);
    for _ in 0..TRIES_MAX {
        let id = id_of(name, number)?;
        let create = CreateSession {
            id: Some(id.clone()),
            workspace: call.workspace.as_ref().map(|path| path.to_string_lossy().into_owned()),
            interpreter: door.shared.interpreter.clone(),
            policy: call.policy.clone(),
            idle_s: Some(IDLE_S),
            ..CreateSession::default()
        };
        match client.create_session(&create).await {
            Ok(created) => return Ok((id, Some(news(&created.session, before.as_ref())))),
            // Somebody else was faster, with this use of the name or with one that is over already.
            Err(error) if error.api_code() == Some(ErrorCode::SessionExists) => {
                if let Some(id) = live(client, name, None).await? {
                    return Ok((id, None));
                }
                number += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::NoSession(name.to_owned()))
}

async fn last_use(client: &Client, name: &str) -> Result<Option<(u32, Session)>, Fault> {
    let sessions = client.sessions(WhichSessions::EndedToo).await?.sessions;
    let uses = sessions.into_iter();
    Ok(uses
        .filter_map(|session| Some((use_of(name, &session.id)?, session)))
        .max_by_key(|(number, _)| *number))
}

fn news(session: &Session, before: Option<&(u32, Session)>) -> String {
    let mut news = format!("new session {} in {}", session.id, session.workspace);
    if let Some((_, before)) = before {
        let reason =
            before.ended.as_ref().and_then(|ended| serde_json::to_value(ended.reason).ok());
        let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or("ended");
        news.push_str(&format!("; the one before is over ({reason}), with its variables"));
    }
    news
}
